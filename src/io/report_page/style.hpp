#pragma once

#include <string_view>

namespace autopar::report_page {

/// The page's style sheet. Zoom and folds need no script: radio buttons choose the width of the timelines.
inline constexpr std::string_view kStyle = R"(
:root{color-scheme:light;--line:#d9dde3;--soft:#f5f6f8;--dim:#5b6470}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;margin:0;color:#1d2430;background:#fff}
main{max-width:1360px;margin:0 auto;padding:20px 24px 48px}
h1{font-size:22px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:0 0 10px}
h3{font-size:15px;margin:14px 0 6px}
section{border-top:1px solid var(--line);padding:18px 0 6px}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:10px 0 14px;font-size:14px}
a{color:#2456a4;text-decoration:none}a:hover{text-decoration:underline}
p{margin:6px 0 10px;max-width:80em;overflow-wrap:anywhere}
.remark,.sub{color:var(--dim)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:10px;margin:10px 0}
.tile{background:var(--soft);border-radius:8px;padding:9px 12px;min-width:0}
.tile b{display:block;font-size:19px;line-height:1.25;font-weight:600;overflow-wrap:anywhere}
.tile span{font-size:13px;color:var(--dim)}
.wide{overflow-x:auto;margin:6px 0 12px}
table{border-collapse:collapse;font-size:14px}
th,td{text-align:left;padding:5px 16px 5px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:break-word}
td:first-child{min-width:9em}
th{font-weight:600;color:var(--dim);font-size:13px;white-space:nowrap}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;font-size:13px;margin:6px 0}
.key{display:inline-flex;align-items:center;gap:6px}
.key i{width:12px;height:12px;border-radius:3px;flex:none}
.meter{display:inline-block;width:110px;height:10px;background:#e6e9ee;border-radius:3px;overflow:hidden;vertical-align:middle}
.pc{display:inline-block;min-width:3.9em;text-align:right;font-variant-numeric:tabular-nums}
.meter i{display:block;height:100%;background:#3b6fb6}
.two{display:grid;grid-template-columns:repeat(auto-fit,minmax(430px,1fr));gap:4px 40px}
.two>*{min-width:0}
.two table{width:100%}
.stack{display:flex;height:20px;border-radius:3px;overflow:hidden;background:#eceff3}
.stack i{display:block;height:100%}
.rows{display:grid;grid-template-columns:max-content minmax(0,1fr) max-content;gap:6px 12px;align-items:center;font-size:14px}
.tree{font-size:14px;min-width:600px}
.tree details{margin:0}
.tree summary{list-style:none;cursor:pointer}
.tree summary::-webkit-details-marker{display:none}
.row{display:grid;grid-template-columns:minmax(200px,1fr) 76px 94px 122px minmax(120px,var(--ranks));gap:0 10px;align-items:center;border-bottom:1px solid #eceff3;padding:2px 0}
.row:hover{background:var(--soft)}
.row>span{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.row .name{padding-left:calc(var(--d,0)*18px + 18px);position:relative}
.row.op .name{color:var(--dim)}
summary>.name::before{content:"\25B8";position:absolute;left:calc(var(--d,0)*18px + 3px);color:var(--dim)}
details[open]>summary>.name::before{content:"\25BE"}
.row.head{color:var(--dim);font-size:13px;font-weight:600;align-items:end}
.cells{display:grid;grid-auto-flow:column;grid-auto-columns:minmax(0,1fr);gap:3px}
.cell{display:flex;height:16px;background:#eceff3;border-radius:2px;overflow:hidden}
.cell i{display:block;height:100%}
.head .cells span{overflow:hidden;text-overflow:ellipsis;white-space:normal;text-align:center;line-height:1.2;font-size:12px}
.zoom{font-size:14px;margin:4px 0;display:flex;gap:6px 14px;flex-wrap:wrap;align-items:center}
.tl>input{position:absolute;opacity:0;pointer-events:none}
.zoom label{padding:1px 9px;border:1px solid var(--line);border-radius:6px;cursor:pointer}
.lanes{display:grid;grid-template-columns:max-content minmax(0,1fr);border:1px solid var(--line);border-radius:6px;overflow:hidden;margin:0 0 14px}
.who{font-size:13px;border-right:1px solid var(--line);background:#fff}
.who div{padding:0 10px;white-space:nowrap;line-height:1.3}
.who small{color:var(--dim);font-size:12px;display:block}
.scroll{overflow-x:auto}
.scroll svg{display:block;width:100%}
.scroll text{font-size:12px;fill:#5b6470}
.scroll .num{fill:#fff;font-size:11px;pointer-events:none;text-anchor:middle}
.scroll rect:hover{stroke:#000;stroke-width:1.5}
.axis{stroke:#d9dde3}
.x4,.x16,.x64{display:none}
#zoom1:checked~.zoom [for=zoom1],#zoom4:checked~.zoom [for=zoom4],#zoom16:checked~.zoom [for=zoom16],#zoom64:checked~.zoom [for=zoom64]{background:#2456a4;border-color:#2456a4;color:#fff}
.tl>input:focus-visible~.zoom{outline:2px solid #2456a4;outline-offset:3px}
#zoom4:checked~.lanes svg{width:400%}#zoom16:checked~.lanes svg{width:1600%}#zoom64:checked~.lanes svg{width:6400%}
#zoom4:checked~.lanes .x4,#zoom16:checked~.lanes .x4,#zoom64:checked~.lanes .x4,#zoom16:checked~.lanes .x16,#zoom64:checked~.lanes .x16,#zoom64:checked~.lanes .x64{display:inline}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(360px,1fr));gap:14px 28px}
.chart{min-width:0}
.chart h3{margin:4px 0}
.plot{position:relative;height:190px;border:1px solid var(--line);border-radius:4px;overflow:hidden}
.plot svg{position:absolute;inset:0;width:100%;height:100%}
.plot span{position:absolute;font-size:12px;color:#333;background:rgba(255,255,255,.8);padding:0 4px;border-radius:3px}
.ends{display:flex;justify-content:space-between;font-size:12px;color:var(--dim)}
@media(max-width:900px){main{padding:14px 14px 40px}.two{grid-template-columns:minmax(0,1fr)}}
@media print{nav,.zoom{display:none}}
)";

/// Zooms about the pointer (Ctrl and wheel, or the buttons about the middle) and drags; folds all modules or none.
inline constexpr std::string_view kScript = R"(
(function(){
var box=document.querySelector('.scroll');
if(box){
 var levels=[1,4,16,64],at=0;
 function go(to,x){
  if(to<0||to>=levels.length)return;
  var share=(box.scrollLeft+x)/box.scrollWidth;
  document.getElementById('zoom'+levels[to]).checked=true;at=to;
  box.scrollLeft=share*box.scrollWidth-x;
 }
 levels.forEach(function(level,i){
  var label=document.querySelector('label[for=zoom'+level+']');
  label.addEventListener('click',function(e){e.preventDefault();go(i,box.clientWidth/2);});
  document.getElementById('zoom'+level).addEventListener('change',function(){at=i;});
 });
 box.addEventListener('wheel',function(e){
  if(!e.ctrlKey)return;
  e.preventDefault();go(at+(e.deltaY<0?1:-1),e.clientX-box.getBoundingClientRect().left);
 },{passive:false});
 var from=null;
 box.addEventListener('pointerdown',function(e){from=e.clientX+box.scrollLeft;});
 window.addEventListener('pointermove',function(e){if(from!==null)box.scrollLeft=from-e.clientX;});
 window.addEventListener('pointerup',function(){from=null;});
}
var fold=document.getElementById('fold');
if(fold){
 fold.hidden=false;
 fold.addEventListener('click',function(e){
  var open=e.target.getAttribute('data-open');
  if(open!==null)document.querySelectorAll('.tree details').forEach(function(d){d.open=open==='1';});
 });
}
})();
)";

}  // namespace autopar::report_page

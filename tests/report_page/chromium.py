#!/usr/bin/env python3
"""chromium.py AUTOPAR TUTORIAL CLUSTER WORK: how a browser shows a page of `autopar report`, at 1400 and 800 pixels.

Fails where the page is wider than the window, text is smaller than 11 pixels, cut off or overlaps, or a zoom or fold does
nothing. Exit status 77 (skipped) without Chromium. WORK keeps the pages and what they look like."""
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77
WIDTHS = (1400, 800)

# Appended to a copy of the page: looks, acts as a user does, and leaves what it found in the title.
PROBE = r"""<script>
window.addEventListener('load', function () {
  const out = {faults: []};
  const fault = text => out.faults.push(text);
  const all = query => [...document.querySelectorAll(query)];
  const box = document.querySelector('.scroll'), svg = box.querySelector('svg');
  const is_shown = element => getComputedStyle(element).display !== 'none';
  out.bars = all('.bar').length;
  out.areas = all('.area').length;
  if (document.documentElement.scrollWidth > innerWidth) fault('the page is wider than the window');
  for (const section of all('section')) if (section.getBoundingClientRect().height < 40) fault('empty: ' + section.id);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || ['SCRIPT', 'STYLE', 'title'].includes(parent.tagName)) continue;
    if (parseFloat(getComputedStyle(parent).fontSize) < 11) fault('small text: ' + node.textContent);
  }
  for (const head of all('.row.head > span, .row.head .cells span, .tile b, .tile span, th, .zoom label'))
    if (head.scrollWidth > head.clientWidth + 1 && head.clientWidth > 0) fault('cut off: ' + head.textContent);
  const overlap = () => {
    const ticks = all('.scroll svg > g > text').filter(text => is_shown(text.parentElement) && !text.closest('.lane'))
      .map(text => text.getBoundingClientRect()).sort((a, b) => a.left - b.left);
    return ticks.some((tick, i) => i > 0 && tick.left < ticks[i - 1].right);
  };
  if (overlap()) fault('ticks overlap');
  const edge = svg.getBoundingClientRect().right;
  for (const text of all('.scroll text').filter(is_shown))
    if (text.getBoundingClientRect().right > edge + 1) fault('cut off: ' + text.textContent);
  const numbers = () => all('.num').filter(is_shown).length;
  const before = numbers(), ticks = all('.scroll .x16').filter(is_shown).length;
  for (const zoom of [4, 16, 64, 1]) {
    document.querySelector('label[for=zoom' + zoom + ']').click();
    const width = svg.getBoundingClientRect().width / box.clientWidth;
    if (Math.abs(width - zoom) > 0.05 * zoom) fault('zoom ' + zoom + ' shows ' + width);
    if (overlap()) fault('ticks overlap at zoom ' + zoom);
    if (zoom === 64 && numbers() < before) fault('zooming hides numbers');
    if (zoom === 16 && all('.scroll .x16').filter(is_shown).length <= ticks) fault('zooming shows no finer ticks');
  }
  document.querySelector('#fold a[data-open="1"]').click();
  const open = all('.tree details[open]').length;
  document.querySelector('#fold a[data-open="0"]').click();
  if (open === 0 || all('.tree details[open]').length > 0) fault('folding does nothing');
  document.title = JSON.stringify(out);
});
</script>"""


def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        if shutil.which(name):
            return name
    return None


def browse(browser, width, *arguments):
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
               f"--window-size={width},2400", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout


def main():
    autopar, tutorial, cluster, work = sys.argv[1:]
    browser = chromium()
    if browser is None:
        print("skipped: there is no Chromium")
        return SKIPPED
    folder = pathlib.Path(work)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment = dict(os.environ, AUTOPAR_PROFILE_FILE="net.json", OMP_NUM_THREADS="1")
    subprocess.run([tutorial, "64", "5000", "100", "--plan-only", "--cluster", cluster], cwd=folder, env=environment,
                   check=True, capture_output=True)
    plans = {"pipeline": ["--stages", "4", "--microbatches", "8"], "replicas": ["--stages", "1"]}
    wrong = []
    for name, options in plans.items():
        subprocess.run([autopar, "plan", "net.json", cluster, "--batch", "512", *options, "--out", f"{name}.json"],
                       cwd=folder, check=True, capture_output=True)
        subprocess.run([autopar, "report", f"{name}.json", "net.json", cluster, "--quick", "--out", f"{name}.html"],
                       cwd=folder, check=True, capture_output=True)
        page = (folder / f"{name}.html").read_text()
        (folder / f"{name}.probed.html").write_text(page.replace("</body>", PROBE + "</body>"))
        for width in WIDTHS:
            browse(browser, width, f"--screenshot={folder}/{name}.{width}.png", f"file://{folder}/{name}.html")
            dom = browse(browser, width, "--virtual-time-budget=4000", "--dump-dom", f"file://{folder}/{name}.probed.html")
            found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", dom, re.S).group(1)))
            wrong += [f"{name} at {width} pixels: {fault}" for fault in found["faults"]]
            if found["bars"] == 0 or found["bars"] != page.count('<rect class="bar') or found["areas"] == 0:
                wrong.append(f"{name} at {width} pixels: {found['bars']} bars, {found['areas']} areas")
    print("\n".join(wrong) or f"{len(plans)} pages at {len(WIDTHS)} widths: as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#pragma once

namespace autopar {

/// What a margin loss does to logits that are cosines of angles θ between features and classes: the target's becomes
/// scale·(cos(θ + arc) − cosine), the others scale·cos θ. Deng et al. 2019, "ArcFace", equation 4; beyond θ = π − arc,
/// where that would rise again, cos θ − arc·sin(arc) takes the place of cos(θ + arc), as in its authors' code.
///
///     Margin{.scale = 64, .arc = 0.5}       // ArcFace
///     Margin{.scale = 64, .cosine = 0.35}   // CosFace: Wang et al. 2018, equation 4
///
/// Whoever makes the logits sees that they are cosines: rows of features and of the weight of norm 1, no bias.
struct Margin {
  double scale = 64;
  double arc = 0;     ///< radians, 0 <= arc < π
  double cosine = 0;  ///< >= 0
};

}  // namespace autopar

#pragma once

namespace autopar {

/// A margin loss's change of logits that are cosines of angles θ between features and classes. The target's logit
/// becomes scale·(cos(θ + arc) − cosine), the others scale·cos θ (Deng et al. 2019, "ArcFace", equation 4). Beyond θ =
/// π − arc, where cos(θ + arc) would rise again, cos θ − arc·sin(arc) replaces it, as in the authors' code.
///
///     Margin{.scale = 64, .arc = 0.5}       // ArcFace
///     Margin{.scale = 64, .cosine = 0.35}   // CosFace: Wang et al. 2018, equation 4
///
/// The caller ensures that logits are cosines: rows of features and weight have norm 1, and there is no bias.
struct Margin {
  double scale = 64;
  double arc = 0;     ///< radians, 0 <= arc < π
  double cosine = 0;  ///< >= 0
};

}  // namespace autopar

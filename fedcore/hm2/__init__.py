"""HM2: devices' coefficients as draws from a distribution with hyper-parameters phi, whose posterior they learn together by federated
expectation propagation.

- `hm2`: the algorithm with a model chosen by name.
- `algorithm`: the rounds; with `state`, what is known and told, `approximation`, the server's steps, `certificate` and `cohorts`.
- `natural`: normal distributions over phi by their natural parameters, which sites add up in.
- `hierarchy`: what a hierarchical model offers to the algorithm, whichever it is.
- `gaussian`, `isotropic`, `penalised`, `horseshoe`: the models.
- `units`, `half_cauchy`: what hyper-priors are stated in, and one that is not normal.
- `grid`, `inner`, `laplace`, `scale_mixture`: what the penalised models are made of: quadrature over phi, expectation propagation within a
  device, moments of a normal distribution times a prior with a kink, and what stands in where a horseshoe leaves the propagation astray.
- `coefficients`, with `mixture` and `tilted_normal`: what is known of a device's coefficients.
"""

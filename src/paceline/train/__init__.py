"""Training of the demo: target, multi-token head and DFlash drafter, in plain torch (see
`paceline.train.demo`)."""

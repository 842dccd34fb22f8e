"""The centralised designs that decentralised workers replaced, for the factor analysis only."""

"""Making up futures: the production engine on virtual time, in two fidelities, campaign and protocol."""

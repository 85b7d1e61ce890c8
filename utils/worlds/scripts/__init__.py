"""Scripts as torchrun runs them, unmodified: on recorded ranks, or on those of a virtual cluster."""

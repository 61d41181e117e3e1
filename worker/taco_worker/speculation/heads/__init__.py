"""Draft heads that read the target's hidden states: Medusa, EAGLE and EAGLE 3."""

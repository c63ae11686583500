"""How the target's tokens are chosen and compared with a draft: pure functions on tensors."""

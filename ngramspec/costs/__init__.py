"""What forwards and engine steps cost, assumed and then measured."""

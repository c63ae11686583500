"""Attention over trees and over grouped queries."""

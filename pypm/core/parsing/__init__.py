"""The text syntax: syntax trees and the constants in them."""

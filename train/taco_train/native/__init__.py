"""Compiles and loads the C++ of csrc/."""

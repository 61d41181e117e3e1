"""Integers of few bits with scales: what GPTQ, AWQ, Marlin and QQQ have in common."""

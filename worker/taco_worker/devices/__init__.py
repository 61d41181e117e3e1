"""Devices: selection, host-device copies and available memory."""

"""Elastic training: a job continues when ranks are lost, and takes new ones in."""

"""Model configurations, recipes and weight files, for any back end."""

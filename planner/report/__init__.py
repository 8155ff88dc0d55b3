"""A Plan as tables, pictures and pages; the only place that formats units."""

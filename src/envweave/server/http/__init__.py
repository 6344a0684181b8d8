"""The HTTP side: routes, bodies, health probes, OpenAPI."""

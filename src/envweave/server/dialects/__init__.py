"""The protocols that clients speak over WebSocket and MCP, translated to calls of the service."""

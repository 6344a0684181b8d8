"""From an ID to the recipe it names; one module a scheme."""

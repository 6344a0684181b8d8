"""Resolvers: from an ID to the recipe that it names, by scheme."""

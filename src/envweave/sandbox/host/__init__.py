"""What the host sets up around sessions: cgroups, users, work directories, installed packages."""

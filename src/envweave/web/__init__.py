"""Pages for a browser: `/web` of a server, and `envweave view`.

Plain HTML, CSS and JavaScript modules below `static`, without a build step and without requests to
other hosts. This package knows nothing of sessions; a server adds its pages to its own routes.
"""

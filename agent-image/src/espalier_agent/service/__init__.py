"""The HTTP service that trainers consult: `app` is the routes, `server` the process."""

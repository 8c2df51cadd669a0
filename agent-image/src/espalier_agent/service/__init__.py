"""The HTTP service that trainers consult: `app` has the routes, `server` the process."""

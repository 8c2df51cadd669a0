"""Jobs' statuses, Events and objects, brought up to what is remembered of them."""

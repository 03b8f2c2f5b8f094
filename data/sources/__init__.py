"""Where text comes from: `reading` reads any source, `schemes` knows those with a name, `files` those with a path; a
module for each kind of either."""

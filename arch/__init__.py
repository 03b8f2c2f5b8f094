"""The models. `arch.architectures.register_all` registers them by name; `arch.config` calls it."""

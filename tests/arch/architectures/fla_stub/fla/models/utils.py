"""The cache of layers' states, as flash-linear-attention's has it."""


class Cache:
    def __init__(self):
        self.states = []
        self.seen = 0

    def __len__(self):
        return len(self.states)

    def __getitem__(self, index):
        return self.states[index]

    def update(self, layer_idx, offset, **state):
        names = ("recurrent_state", "attn_state", "conv_state", "ffn_state")
        self.states = [{name: state.get(name) for name in names}]
        self.seen += offset

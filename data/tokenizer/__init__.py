"""Text to token ids and back. `get_tokenizer` opens a tokenizer by its name (data/vocabulary.py)."""

from .base import END_OF_TEXT as END_OF_TEXT
from .base import ByteTokenizer as ByteTokenizer
from .base import Tokenizer as Tokenizer
from .base import refuse_another as refuse_another
from .choose import get_tokenizer as get_tokenizer
from .choose import is_at_hand as is_at_hand

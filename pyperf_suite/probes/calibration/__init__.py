"""Library products and attentions spread over all sizes, for laws to be fitted to on this machine."""

"""All-reduces of tensors on devices: levels of torch process groups."""

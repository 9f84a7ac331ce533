"""What a message costs the bridge, beside a paho loop with the same guarantee and a reader that only acknowledges."""

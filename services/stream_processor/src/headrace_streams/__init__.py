"""headrace stream processor: stages of pure engines on Faust."""

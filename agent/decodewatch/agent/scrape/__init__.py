"""Servers that say over HTTP how they are: llama-server and vLLM. `scraper` asks them."""

"""Payloads and results as stored text: JSON, encryption and signing, redaction, argument versions."""

"""Rules for lines of output, as in a policy file under ``faults: rules:``."""

RULES = [
    {
        "name": "acme-inlet",
        "pattern": r"acme: inlet at \d+ C",
        "class": "gpu-hw",
        "detail": "too-hot",
        "action": "wait",
        "reason": "the cooling air was too hot",
        "example": "acme: inlet at 41 C",
    },
]

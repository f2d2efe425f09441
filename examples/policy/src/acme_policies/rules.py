"""Classification rules, as in a policy file under ``faults: rules:``."""

TOO_HOT = "too-hot"

RULES = [
    {
        "name": "acme-bmc",
        "pattern": r"acme-bmc: inlet at \d+ C",
        "class": "gpu-hw",
        "detail": TOO_HOT,
        "action": "wait",
        "reason": "Acme's board controller cut the power because the cooling air was too hot",
        "example": "acme-bmc: inlet at 41 C",
    },
]

"""The contract of codecs, for the types whose kernels test_kernels_coarse.py looks at."""

from hf2q.testing import CodecContract


class TestTQ10(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "TQ1_0"
    max_error = 1.0  # all that is below half of the largest weight becomes zero


class TestTQ20(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "TQ2_0"
    max_error = 1.0


class TestMXFP4(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "MXFP4"


class TestIQ2S(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "IQ2_S"


class TestIQ3S(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "IQ3_S"


class TestIQ3XXS(CodecContract):
    plugin = "hf2q_quant_kquant"
    name = "IQ3_XXS"

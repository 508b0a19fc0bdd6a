// Recorded results of the start battery, for kNumericsVersion 1.
#include "model/battery.h"

namespace reprise {
namespace {

constexpr RecordedResult kRecorded[] = {
    {"add", "313fbc4568389e259781e90656163f1722a3cddca3bc9403a3998d0e64816207"},
    {"attention/bf16", "3b2c47c8eab25ca7848ab0d70b1dda833f203f7a815cfcef2b39cf131b73fa79"},
    {"attention/f16", "e4678b7bece00cdcb0fea4335f60c3fd93cc11d819724eb4a504f2ea8caf4755"},
    {"attention/f32", "52f57e12850e38aaeee8a7cc5fed8836d318b1531b810535907d249d8f9adedd"},
    {"cap", "23108f02ee23e0edb1a73d2fedc7194ce6bb391ad802b0e08a6cb38604795135"},
    {"gelu", "e8d30fad737115c58cd25e6e0a6d89d16258f63a150a0b3e37dbeee2ce75bb48"},
    {"norm", "97932a6973b922717911dcc50f6b8dec3d2f886eb23ba6c0e1c5617082b5305c"},
    {"product/BF16", "8541850a04c26ee83e22d1905c87c3c537f83973ea31d8c72001ef990dfd89dc"},
    {"product/F16", "268f4cb1e4cc4e8886d69ec04f8f10134de9d7d13578aabef2c7af4408fe952c"},
    {"product/F32", "915676918927bf20540a47c95980292a89d8a1fa1e42b64391c590d2055b7641"},
    {"product/Q4_0", "8af9872ee94c9fcdf300a69649cec2d2e992487c614a6e00cdc4cdc8d50c776c"},
    {"product/Q4_1", "543c613fdba64363ff4308f491de02980747a7d71e778dc10e7e8c31f6b58402"},
    {"product/Q4_K", "648e4d03797d1aec62f11a7667ff243e77bcfa2cb5451bb48674013b184a2f1a"},
    {"product/Q5_0", "e351e0e45b74c7d6d8ef58cfe49d9fcf816bf5df9a4a4ebc8c99ec987f10fbd4"},
    {"product/Q5_1", "c830e6a372cb6b429540b4432be62e1be1228dbd1fbb3084d37518a723a9a896"},
    {"product/Q5_K", "eb39b02d0ffd86869a95950538ba7e725d20a7c24735c4d4f45fbeb986b22fed"},
    {"product/Q6_K", "fa9b22fee9634a9f67425257ec33cc1c6191f7ead881a921c7973ab036e5fc2f"},
    {"product/Q8_0", "76646fd7a3432b634e33eee63e8aeb9f4bc92385ec9c103a5de384b3e4bcc5cd"},
    {"rope", "b4782eea76837848b6229a28b91631bb32393cf311f48291816a881d67fc0d6e"},
    {"silu", "d045eacb969eb5f04ef38df27ec67457fe9d4b161e3c300178e9c24f8c7aeb6d"},
};

}  // namespace

std::span<const RecordedResult> RecordedResults() { return kRecorded; }

}  // namespace reprise

// Loads the operators of a model that ow.package wrote, in a program without Python, before the model itself:
//
//     opwright::load_operators("model.pt2", opwright::Trusted());
//     torch::inductor::AOTIModelPackageLoader model("model.pt2");
//
// The libraries in an archive are code, and run with the rights of the program: Trusted is its word that it trusts
// whoever wrote the file. Trusted("…") takes a SHA-256 that came another way, and refuses every other file (as it is
// when this reads it: the program opens the model by itself, from a place that nobody else writes to). They are
// unpacked into the user's own cache folder and held against the archive's digests. Whatever stands in the way is a
// c10::Error that names it, before anything runs.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <caffe2/serialize/inline_container.h>
#include <dlfcn.h>
#include <sys/stat.h>
#include <torch/version.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace opwright {

// A program's word that it trusts the code in an archive.
struct Trusted {
    std::optional<std::string> sha256;  // of the file; none: any

    Trusted() = default;
    explicit Trusted(std::string digest) {
        if (digest.rfind("sha256:", 0) == 0) digest.erase(0, 7);
        for (char& c : digest) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        TORCH_CHECK(digest.size() == 64 && digest.find_first_not_of("0123456789abcdef") == std::string::npos,
                    "opwright::Trusted takes the 64 hexadecimal digits of a SHA-256, got '", digest, "'");
        sha256 = std::move(digest);
    }
};

namespace ow_inner {

// SHA-256 (FIPS 180-4), in hexadecimal digits.
class Sha256 {
  public:
    static std::string of(const std::string& content) {
        Sha256 hash;
        std::string padded = content;
        padded += '\x80';
        while (padded.size() % 64 != 56) padded += '\0';
        for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(uint64_t{content.size()} * 8 >> shift);
        for (size_t i = 0; i < padded.size(); i += 64) {
            hash.add(reinterpret_cast<const unsigned char*>(padded.data()) + i);
        }
        std::string digits;
        for (const uint32_t word : hash.state_) {
            char spelled[9];
            std::snprintf(spelled, sizeof spelled, "%08x", word);
            digits += spelled;
        }
        return digits;
    }

  private:
    static uint32_t turn(uint32_t x, int by) { return x >> by | x << (32 - by); }

    void add(const unsigned char* block) {
        static const uint32_t constants[64] = {
            0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
            0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
            0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
            0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
            0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
            0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
            0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
            0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
        uint32_t w[64];
        for (int i = 0; i < 16; ++i) {
            w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
                   block[4 * i + 3];
        }
        for (int i = 16; i < 64; ++i) {
            const uint32_t a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3;
            const uint32_t b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16] + a + w[i - 7] + b;
        }
        uint32_t s[8];
        std::copy(state_, state_ + 8, s);
        for (int i = 0; i < 64; ++i) {
            const uint32_t one = turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25),
                           choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
            const uint32_t first = s[7] + one + choice + constants[i] + w[i];
            const uint32_t two = turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22);
            const uint32_t most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
            for (int k = 7; k > 0; --k) s[k] = s[k - 1];
            s[4] += first;
            s[0] = first + two + most;
        }
        for (int k = 0; k < 8; ++k) state_[k] += s[k];
    }

    uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

inline std::string read_file(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    TORCH_CHECK(in, file, ": it cannot be read");
    return std::string(std::istreambuf_iterator<char>(in), {});
}

// The folder that libraries are unpacked into: the user's own, to which nobody else may write.
inline std::string private_folder() {
    const auto setting = [](const char* name) {
        const char* const value = ::secure_getenv(name);
        return std::string(value == nullptr ? "" : value);
    };
    std::string root = setting("OPWRIGHT_CACHE_DIR");
    if (root.empty()) {
        std::string caches = setting("XDG_CACHE_HOME");
        if (caches.empty()) {
            TORCH_CHECK(!setting("HOME").empty(),
                        "opwright: there is no home folder; set OPWRIGHT_CACHE_DIR to a folder");
            caches = setting("HOME") + "/.cache";
        }
        root = caches + "/opwright";
    }
    const std::string place = root + "/packages";
    for (size_t end = 1; end != std::string::npos;) {
        end = place.find('/', end + 1);
        ::mkdir(place.substr(0, end).c_str(), 0700);
    }
    for (std::string each = place; !each.empty(); each.erase(each.find_last_of('/'))) {
        struct stat about = {};
        TORCH_CHECK(::stat(each.c_str(), &about) == 0, each, ": it cannot be made; set OPWRIGHT_CACHE_DIR to a folder");
        // On the way there, others may write where they cannot take away what is not theirs.
        const bool safe = each != place && each != root && (about.st_mode & S_ISVTX) != 0;
        TORCH_CHECK(
            (about.st_uid == ::geteuid() || about.st_uid == 0) && (safe || (about.st_mode & (S_IWGRP | S_IWOTH)) == 0),
            each, ": others can write to it; chmod go-w, or set OPWRIGHT_CACHE_DIR to a folder of yours");
        if (each.find('/') == std::string::npos) break;
    }
    return place;
}

// Whether a file is the user's or root's alone, and holds this.
inline bool is_there(const std::string& file, const std::string& content) {
    struct stat about = {};
    if (::lstat(file.c_str(), &about) != 0 || !S_ISREG(about.st_mode)) return false;
    if (about.st_uid != ::geteuid() && about.st_uid != 0) return false;
    return (about.st_mode & (S_IWGRP | S_IWOTH)) == 0 && read_file(file) == content;
}

inline void load_library(const std::string& content, const std::string& digest, const std::string& what) {
    TORCH_CHECK(Sha256::of(content) == digest, what, " is not what the archive's list says: it was changed");
    const std::string target = private_folder() + "/" + digest + ".so";
    if (!is_there(target, content)) {
        std::string partial = target + ".XXXXXX";
        const int handle = ::mkstemp(partial.data());
        TORCH_CHECK(handle >= 0, target, ": it cannot be written");
        ::close(handle);
        std::ofstream out(partial, std::ios::binary);
        out.write(content.data(), static_cast<std::streamsize>(content.size()));
        out.close();
        const bool written = out && std::rename(partial.c_str(), target.c_str()) == 0;
        if (!written) ::unlink(partial.c_str());
        TORCH_CHECK(written, target, ": it cannot be written");
    }
    TORCH_CHECK(::dlopen(target.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr, what, " cannot be loaded: ", ::dlerror());
}

template <class... A>
std::string ask_native(const char* op, const A&... arguments) {
    torch::jit::Stack stack;
    (stack.emplace_back(arguments), ...);
    c10::Dispatcher::singleton().findSchemaOrThrow(op, "").callBoxed(&stack);
    return stack.at(0).toStringRef();
}

}  // namespace ow_inner

// Loads the operators of an archive. One without operators of opwright's is left as it is.
inline void load_operators(const std::string& file, const Trusted& trusted) {
    using namespace ow_inner;
    std::istringstream content;  // of one reading, which is what is held against the digest
    if (trusted.sha256) {
        content.str(read_file(file));
        const std::string found = Sha256::of(content.str());
        TORCH_CHECK(found == *trusted.sha256, file, ": its SHA-256 is ", found, ", and ", *trusted.sha256,
                    " was expected");
    }
    using Reader = caffe2::serialize::PyTorchStreamReader;
    const auto whole = [&](const auto& read) {
        try {
            return read();
        } catch (const c10::Error& e) {
            TORCH_CHECK(false, file, ": it is cut short or changed (", e.what_without_backtrace(), "); fetch it again");
        }
    };
    const auto archive =
        whole([&] { return trusted.sha256 ? std::make_unique<Reader>(&content) : std::make_unique<Reader>(file); });
    const std::string folder = "opwright/";
    if (!archive->hasRecord(folder + "manifest")) return;
    const auto record = [&](const std::string& name) {
        return whole([&] {
            const auto [data, size] = archive->getRecord(name);
            return std::string(static_cast<const char*>(data.get()), size);
        });
    };
    std::vector<std::vector<std::string>> rows;
    std::istringstream lines(record(folder + "manifest"));
    for (std::string line; std::getline(lines, line);) {
        std::vector<std::string>& row = rows.emplace_back();
        std::istringstream words(line);
        for (std::string word; std::getline(words, word, '\t');) row.push_back(word);
        row.resize(std::max<size_t>(row.size(), 5));
    }
    TORCH_CHECK(
        !rows.empty() && rows[0][0] == "format" && rows[0][1] == "1", file,
        ": its operators are of another format than this header reads; take that of the opwright that wrote it");
    for (const auto& row : rows) {
        static const std::set<std::string> known{"format", "wire", "library", "native", "member", "operator"};
        TORCH_CHECK(known.count(row[0]) != 0, file, ": its manifest was changed ('", row[0], "'); fetch it again");
        // The model itself, all but its weights; PyTorch compares nothing.
        TORCH_CHECK(row[0] != "member" || Sha256::of(record(row[1])) == row[2], file, ": ", row[1],
                    " is not what the archive's list says: it was changed");
    }
    auto& dispatcher = c10::Dispatcher::singleton();
    const std::string torch = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + "." +
                              std::to_string(TORCH_VERSION_PATCH);
    const auto is_bound = [&](const std::string& overload, const std::string& device) {  // by the same build
        const auto dot = overload.find('.');
        const auto found = dispatcher.findOp({overload.substr(0, dot), overload.substr(dot + 1)});
        return found && found->hasKernelForDispatchKey(c10::parseDispatchKey(device));
    };
    const auto load = [&](const char* kind, const std::string& which, const char* device) {
        bool any = false;
        for (const auto& row : rows) {
            if (row[0] != kind || row[3] != which) continue;
            if (device == nullptr || !is_bound(row[4], device)) {
                load_library(record(folder + row[1]), row[2], file + ": " + row[1]);
            }
            any = true;
        }
        return any;
    };
    if (!dispatcher.findSchema({"opwright_native::load", ""})) {
        TORCH_CHECK(load("native", torch, nullptr), file, ": it was written for another torch than ", torch,
                    "; package the model again where torch is ", torch);
    }
    for (const auto& row : rows) {
        TORCH_CHECK(row[0] != "wire" || Sha256::of(ask_native("opwright_native::wire")) == row[1], file,
                    ": another version of opwright is in this process than the one that wrote it");
    }
    load("library", "cpu", "CPU");
    if (at::globalContext().hasCUDA()) load("library", "cuda", "CUDA");
    const std::string trouble = ask_native("opwright_native::load", record(folder + "operators"));
    TORCH_CHECK(trouble.empty(), file, ": ", trouble);
    for (const auto& row : rows) {
        if (row[0] != "operator") continue;
        const auto found = dispatcher.findSchema({row[1], ""});
        std::ostringstream here;
        if (found) here << found->schema();
        TORCH_CHECK(here.str() == row[2], file, ": the model calls ", row[2], ", and here is ",
                    found ? here.str() : "none");
    }
}

}  // namespace opwright

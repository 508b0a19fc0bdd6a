#include "env/memory_file_system.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSectorBytes = 512;
using Page = std::array<std::byte, kPageBytes>;

// The bytes of a file. Pages are never changed while someone else has them: copies share them.
struct Contents {
  uint64_t size = 0;
  std::vector<std::shared_ptr<const Page>> pages;  // null: zeros that take no room

  const Page* page(size_t index) const { return index < pages.size() ? pages[index].get() : nullptr; }
};

struct Node {
  Contents now, synced;
  std::set<size_t> dirty;  // pages that may differ
  bool linked = true;      // counts for the capacity
};
using Names = std::map<std::string, std::shared_ptr<Node>>;

// A change of names that no SyncDirectory has made durable.
struct NameChange {
  std::string from, to;  // create: to; remove: from; rename: both
  std::shared_ptr<Node> node;
  void ApplyTo(Names& names) const {
    if (auto it = names.find(from); !from.empty() && it != names.end() && it->second == node) names.erase(it);
    if (!to.empty()) names[to] = node;
  }
};

std::string Normal(const std::string& path) {
  std::string out = std::filesystem::path(path).lexically_normal().string();
  while (out.size() > 1 && out.back() == '/') out.pop_back();
  return out;
}
std::string DirectoryOf(const std::string& path) {
  const std::string out = std::filesystem::path(path).parent_path().string();
  return out.empty() ? "." : out;
}
std::string NameOf(const std::string& path) { return std::filesystem::path(path).filename().string(); }

absl::Status NotFound(const std::string& path) { return absl::NotFoundError(absl::StrCat(path, ": no such file")); }

// A coin for each thing that was not synced: never, always, or now and then.
class Fate {
 public:
  explicit Fate(uint64_t seed) : random_(seed), keep_of_4_(static_cast<uint32_t>(random_() % 5)) {}
  bool Keeps() { return random_() % 4 < keep_of_4_; }
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : random_() % bound; }

 private:
  std::mt19937_64 random_;
  const uint32_t keep_of_4_;
};

// A file after a power cut: each sector that was not synced as it was or as it is.
Contents AfterCut(const Node& node, Fate& fate) {
  Contents out = node.synced;
  if (node.now.size != node.synced.size && fate.Keeps()) {
    const auto [low, high] = std::minmax(node.now.size, node.synced.size);
    out.size = fate.Keeps() ? node.now.size : low + fate.Below(high - low + 1);
  }
  out.pages.resize((out.size + kPageBytes - 1) / kPageBytes);
  for (size_t index : node.dirty) {
    if (index >= out.pages.size()) break;
    static const Page kZeros{};
    const Page* now = node.now.page(index);
    const Page* before = node.synced.page(index);
    auto page = std::make_shared<Page>(before != nullptr ? *before : kZeros);
    for (size_t at = 0; at < kPageBytes; at += kSectorBytes)
      if (fate.Keeps()) std::memcpy(page->data() + at, (now != nullptr ? *now : kZeros).data() + at, kSectorBytes);
    out.pages[index] = std::move(page);
  }
  // Behind the end there is nothing, whatever a page held there.
  if (const size_t within = out.size % kPageBytes; within != 0 && out.pages.back() != nullptr) {
    auto page = std::make_shared<Page>(*out.pages.back());
    std::memset(page->data() + within, 0, kPageBytes - within);
    out.pages.back() = std::move(page);
  }
  return out;
}

}  // namespace

struct MemoryFileSystem::State {
  mutable std::mutex mutex;  // of all that follows
  Names names;
  Names durable_names;
  std::vector<NameChange> name_changes;  // from durable_names to names, in order
  std::set<std::string> directories = {".", "/"};
  std::set<std::string> locked;
  std::function<void(const Change&)> hook;
  uint64_t changes = 0;
  uint64_t capacity_pages = std::numeric_limits<uint64_t>::max();
  uint64_t used_pages = 0;

  // Comes before every change.
  void Announce(std::string_view kind, std::string_view path) {
    std::function<void(const Change&)> call;
    Change change{0, kind, path};
    {
      std::lock_guard lock(mutex);
      change.number = changes++;
      call = hook;
    }
    if (call) call(change);
  }

  // The rest: with the mutex held.
  void ChangeNames(NameChange change) {
    change.ApplyTo(names);
    name_changes.push_back(std::move(change));
  }

  // Its pages no longer count; whoever has it open may go on.
  void Unlink(Node& node) {
    used_pages -= Used(node.now);
    node.linked = false;
  }

  static uint64_t Used(const Contents& contents) {
    return contents.pages.size() - std::count(contents.pages.begin(), contents.pages.end(), nullptr);
  }

  // The page, to be written to. Null: there is no room for it.
  Page* Writable(Node& node, size_t index) {
    if (index >= node.now.pages.size()) node.now.pages.resize(index + 1);
    std::shared_ptr<const Page>& page = node.now.pages[index];
    if (page == nullptr) {
      if (node.linked && used_pages >= capacity_pages) return nullptr;
      page = std::make_shared<Page>();
      used_pages += node.linked;
    } else if (page.use_count() > 1) {
      page = std::make_shared<Page>(*page);
    }
    node.dirty.insert(index);
    return const_cast<Page*>(page.get());  // made as a Page that is not const, and nobody else's
  }

  bool Write(Node& node, uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const size_t within = offset % kPageBytes, here = std::min(bytes.size(), kPageBytes - within);
      Page* page = Writable(node, offset / kPageBytes);
      if (page == nullptr) return false;
      std::memcpy(page->data() + within, bytes.data(), here);
      bytes = bytes.subspan(here);
      offset += here;
      node.now.size = std::max(node.now.size, offset);
    }
    return true;
  }

  // Zeros without taking room for them; whole pages are given back.
  void Zero(Node& node, uint64_t offset, uint64_t length) {
    const uint64_t end = std::min<uint64_t>(offset + length, node.now.pages.size() * kPageBytes);
    while (offset < end) {
      const size_t index = offset / kPageBytes, within = offset % kPageBytes;
      const size_t here = std::min<uint64_t>(end - offset, kPageBytes - within);
      offset += here;
      if (node.now.pages[index] == nullptr) continue;
      if (here == kPageBytes) {
        node.now.pages[index] = nullptr;
        used_pages -= node.linked;
        node.dirty.insert(index);
      } else {
        std::memset(Writable(node, index)->data() + within, 0, here);
      }
    }
  }
};

class MemoryFileSystem::OpenFile : public File {
 public:
  OpenFile(std::shared_ptr<State> state, std::shared_ptr<Node> node, std::string path, bool writable)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)), writable_(writable) {}

  absl::StatusOr<size_t> ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    std::lock_guard lock(state_->mutex);
    const Contents& contents = node_->now;
    const size_t total = offset >= contents.size ? 0 : std::min<uint64_t>(out.size(), contents.size - offset);
    for (size_t done = 0; done < total;) {
      const size_t within = (offset + done) % kPageBytes, here = std::min(total - done, kPageBytes - within);
      const Page* page = contents.page((offset + done) / kPageBytes);
      if (page != nullptr)
        std::memcpy(out.data() + done, page->data() + within, here);
      else
        std::memset(out.data() + done, 0, here);
      done += here;
    }
    return total;
  }

  absl::Status WriteAt(uint64_t offset, std::span<const std::span<const std::byte>> pieces) override {
    if (absl::Status status = Begin("write"); !status.ok()) return status;
    std::lock_guard lock(state_->mutex);
    for (std::span<const std::byte> piece : pieces) {
      if (!state_->Write(*node_, offset, piece))
        return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path_, ": no space left"));
      offset += piece.size();
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    state_->Announce("sync", path_);
    std::lock_guard lock(state_->mutex);
    Contents &now = node_->now, &synced = node_->synced;
    synced.size = now.size;
    synced.pages.resize(now.pages.size());
    for (size_t index : node_->dirty)
      if (index < now.pages.size()) synced.pages[index] = now.pages[index];
    node_->dirty.clear();
    return absl::OkStatus();
  }

  absl::Status Truncate(uint64_t size) override {
    if (absl::Status status = Begin("truncate"); !status.ok()) return status;
    std::lock_guard lock(state_->mutex);
    Contents& now = node_->now;
    if (size < now.size) state_->Zero(*node_, size, now.size - size);
    now.size = size;
    now.pages.resize((size + kPageBytes - 1) / kPageBytes);
    return absl::OkStatus();
  }

  absl::Status PunchHole(uint64_t offset, uint64_t length) override {
    if (absl::Status status = Begin("punch"); !status.ok()) return status;
    std::lock_guard lock(state_->mutex);
    state_->Zero(*node_, offset, length);
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Size() const override {
    std::lock_guard lock(state_->mutex);
    return node_->now.size;
  }

  void DropPageCache(uint64_t, uint64_t) override {}

 private:
  absl::Status Begin(std::string_view kind) {
    if (!writable_) return absl::UnavailableError(absl::StrCat("cannot change ", path_, ": opened for reading"));
    state_->Announce(kind, path_);
    return absl::OkStatus();
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
  const bool writable_;
};

class MemoryFileSystem::HeldLock : public FileLock {
 public:
  HeldLock(std::shared_ptr<State> state, std::string path) : state_(std::move(state)), path_(std::move(path)) {}
  ~HeldLock() override {
    std::lock_guard lock(state_->mutex);
    state_->locked.erase(path_);
  }

 private:
  const std::shared_ptr<State> state_;
  const std::string path_;
};

MemoryFileSystem::MemoryFileSystem() : state_(std::make_shared<State>()) {}
MemoryFileSystem::~MemoryFileSystem() = default;

void MemoryFileSystem::SetHook(std::function<void(const Change&)> hook) {
  std::lock_guard lock(state_->mutex);
  state_->hook = std::move(hook);
}

uint64_t MemoryFileSystem::changes() const {
  std::lock_guard lock(state_->mutex);
  return state_->changes;
}

void MemoryFileSystem::SetCapacity(uint64_t bytes) {
  std::lock_guard lock(state_->mutex);
  state_->capacity_pages = bytes / kPageBytes;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::AfterPowerCut(uint64_t seed) const {
  auto out = std::make_unique<MemoryFileSystem>();
  std::lock_guard lock(state_->mutex);
  std::lock_guard out_lock(out->state_->mutex);
  Fate names_fate(seed), contents_fate(~seed);
  Names names = state_->durable_names;
  for (const NameChange& change : state_->name_changes)
    if (names_fate.Keeps()) change.ApplyTo(names);
  std::map<const Node*, std::shared_ptr<Node>> made;  // a file that two names have is still one
  for (const auto& [path, node] : names) {
    std::shared_ptr<Node>& copy = made[node.get()];
    if (copy == nullptr) {
      copy = std::make_shared<Node>();
      copy->now = copy->synced = AfterCut(*node, contents_fate);
      out->state_->used_pages += State::Used(copy->now);
    }
    out->state_->names[path] = copy;
  }
  out->state_->durable_names = out->state_->names;
  out->state_->directories = state_->directories;
  out->state_->capacity_pages = state_->capacity_pages;
  return out;
}

std::unique_ptr<MemoryFileSystem> MemoryFileSystem::AfterKill() const {
  auto out = std::make_unique<MemoryFileSystem>();
  std::lock_guard lock(state_->mutex);
  std::lock_guard out_lock(out->state_->mutex);
  std::map<const Node*, std::shared_ptr<Node>> made;
  const auto copy_of = [&made](const std::shared_ptr<Node>& node) {
    std::shared_ptr<Node>& copy = made[node.get()];
    if (copy == nullptr) copy = std::make_shared<Node>(*node);
    return copy;
  };
  for (const auto& [path, node] : state_->names) out->state_->names[path] = copy_of(node);
  for (const auto& [path, node] : state_->durable_names) out->state_->durable_names[path] = copy_of(node);
  for (const NameChange& change : state_->name_changes)
    out->state_->name_changes.push_back({change.from, change.to, copy_of(change.node)});
  out->state_->directories = state_->directories;
  out->state_->capacity_pages = state_->capacity_pages;
  for (const auto& [path, node] : out->state_->names) out->state_->used_pages += State::Used(node->now);
  return out;
}

absl::StatusOr<std::unique_ptr<File>> MemoryFileSystem::Open(const std::string& given, Mode mode) {
  const std::string path = Normal(given);
  if (mode == Mode::kCreate) state_->Announce("create", path);
  std::lock_guard lock(state_->mutex);
  auto it = state_->names.find(path);
  if (mode == Mode::kCreate) {
    if (it != state_->names.end()) return absl::AlreadyExistsError(absl::StrCat(path, " is there already"));
    if (!state_->directories.contains(DirectoryOf(path))) return NotFound(path);
    state_->ChangeNames({"", path, std::make_shared<Node>()});
    it = state_->names.find(path);
  }
  if (it == state_->names.end()) return NotFound(path);
  return std::make_unique<OpenFile>(state_, it->second, path, mode != Mode::kRead);
}

absl::Status MemoryFileSystem::MakeDirectories(const std::string& path) {
  std::lock_guard lock(state_->mutex);
  for (std::string at = Normal(path);; at = DirectoryOf(at)) {
    if (state_->names.contains(at)) return NotFound(absl::StrCat(at, " is not a directory"));
    if (!state_->directories.insert(at).second) return absl::OkStatus();
  }
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::ListFiles(const std::string& given) {
  const std::string directory = Normal(given);
  std::lock_guard lock(state_->mutex);
  if (!state_->directories.contains(directory)) return NotFound(directory);
  std::vector<std::string> out;
  for (const auto& [path, node] : state_->names)
    if (DirectoryOf(path) == directory) out.push_back(NameOf(path));
  std::sort(out.begin(), out.end());
  return out;
}

absl::StatusOr<std::vector<std::string>> MemoryFileSystem::ListDirectories(const std::string& given) {
  const std::string directory = Normal(given);
  std::lock_guard lock(state_->mutex);
  if (!state_->directories.contains(directory)) return NotFound(directory);
  std::vector<std::string> out;
  for (const std::string& path : state_->directories)
    if (path != directory && DirectoryOf(path) == directory) out.push_back(NameOf(path));
  std::sort(out.begin(), out.end());
  return out;
}

absl::Status MemoryFileSystem::Remove(const std::string& given) {
  const std::string path = Normal(given);
  state_->Announce("remove", path);
  std::lock_guard lock(state_->mutex);
  const auto it = state_->names.find(path);
  if (it == state_->names.end()) return NotFound(path);
  state_->Unlink(*it->second);
  state_->ChangeNames({path, "", it->second});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::Rename(const std::string& given_from, const std::string& given_to) {
  const std::string from = Normal(given_from), to = Normal(given_to);
  state_->Announce("rename", from);
  std::lock_guard lock(state_->mutex);
  const auto it = state_->names.find(from);
  if (it == state_->names.end()) return NotFound(from);
  if (!state_->directories.contains(DirectoryOf(to))) return NotFound(to);
  if (from == to) return absl::OkStatus();
  if (const auto old = state_->names.find(to); old != state_->names.end()) state_->Unlink(*old->second);
  state_->ChangeNames({from, to, it->second});
  return absl::OkStatus();
}

absl::Status MemoryFileSystem::SyncDirectory(const std::string& given) {
  const std::string directory = Normal(given);
  state_->Announce("sync_directory", directory);
  std::lock_guard lock(state_->mutex);
  if (!state_->directories.contains(directory)) return NotFound(directory);
  std::erase_if(state_->name_changes, [&](const NameChange& change) {
    const auto touches = [&](const std::string& path) { return !path.empty() && DirectoryOf(path) == directory; };
    if (!touches(change.from) && !touches(change.to)) return false;
    change.ApplyTo(state_->durable_names);
    return true;
  });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<FileLock>> MemoryFileSystem::Lock(const std::string& given) {
  const std::string path = Normal(given);
  std::lock_guard lock(state_->mutex);
  if (!state_->directories.contains(DirectoryOf(path))) return NotFound(path);
  if (!state_->locked.insert(path).second) return absl::AlreadyExistsError(absl::StrCat(path, " is locked"));
  if (!state_->names.contains(path)) state_->ChangeNames({"", path, std::make_shared<Node>()});
  return std::make_unique<HeldLock>(state_, path);
}

absl::StatusOr<uint64_t> MemoryFileSystem::FreeBytes(const std::string&) {
  std::lock_guard lock(state_->mutex);
  const uint64_t pages = state_->capacity_pages - std::min(state_->capacity_pages, state_->used_pages);
  return std::min(pages, std::numeric_limits<uint64_t>::max() / kPageBytes) * kPageBytes;
}

}  // namespace reprise

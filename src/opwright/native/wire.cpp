// Reads and describes the records of wire.h.

#include "wire.h"

#include <charconv>
#include <type_traits>
#include <utility>

#include "once.h"

namespace opwright {

namespace {

// The words of a message, one after another.
class Words {
  public:
    explicit Words(const std::vector<std::string>& words) : next_(words.begin()), end_(words.end()) {}

    // Which record is read from now on; returns which one was.
    const char* enter(const char* record) { return std::exchange(inside_, record); }

    const std::string& next() {
        TORCH_CHECK(next_ != end_, "opwright: what Python wrote ends inside the record ", inside_);
        return *next_++;
    }

    void end() const { TORCH_CHECK(next_ == end_, "opwright: what Python wrote goes on after the record"); }

    [[noreturn]] void refuse(const std::string& found, const std::string& wanted) const {
        TORCH_CHECK(false, "opwright: what Python wrote has '", found, "' in place of ", wanted, " in the record ",
                    inside_);
    }

  private:
    std::vector<std::string>::const_iterator next_, end_;
    const char* inside_ = "";
};

// How a field of each type is described, and read.
template <class T>
struct Field;

template <>
struct Field<std::string> {
    static std::string spell() { return "str"; }
    static std::string read(Words& words) { return words.next(); }
};

template <class Number>
    requires std::is_integral_v<Number>
struct Field<Number> {
    static std::string spell() { return std::is_same_v<Number, bool> ? "bool" : "int"; }
    static Number read(Words& words) {
        const std::string& word = words.next();
        int64_t number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        if (error != std::errc() || end != word.data() + word.size()) words.refuse(word, spell());
        return static_cast<Number>(number);
    }
};

template <class Choice>
    requires std::is_enum_v<Choice>
struct Field<Choice> {
    static std::string spell() { return std::string("(") + words_of(Choice()) + ")"; }
    static Choice read(Words& words) {
        const std::string& word = words.next();
        const std::string all = words_of(Choice());
        int choice = 0;
        for (size_t start = 0; start < all.size(); ++choice) {
            const size_t end = std::min(all.find(", ", start), all.size());
            if (all.compare(start, end - start, word) == 0) return static_cast<Choice>(choice);
            start = end + 2;
        }
        words.refuse(word, spell());
    }
};

template <class T>
struct Field<std::vector<T>> {
    static std::string spell() { return Field<T>::spell() + "[]"; }
    static std::vector<T> read(Words& words) {
        std::vector<T> list;
        for (auto left = Field<size_t>::read(words); left > 0; --left) list.push_back(Field<T>::read(words));
        return list;
    }
};

template <class T>
struct Field<std::optional<T>> {
    static std::string spell() { return Field<T>::spell() + "?"; }
    static std::optional<T> read(Words& words) {
        if (!Field<bool>::read(words)) return std::nullopt;
        return Field<T>::read(words);
    }
};

template <>
struct Field<Operator> {
    static std::string spell() { return "str"; }
    static Operator read(Words& words) { return find(words.next()); }
};

template <>
struct Field<Dtypes> {
    static std::string spell() { return "dtype[]"; }
    static Dtypes read(Words& words) {
        Dtypes dtypes;
        for (const std::string& name : Field<std::vector<std::string>>::read(words)) {
            const auto found = c10::getStringToDtypeMap().find(name);
            if (found == c10::getStringToDtypeMap().end()) words.refuse(name, "dtype");
            dtypes.bits |= uint64_t{1} << static_cast<int>(found->second);
        }
        return dtypes;
    }
};

template <class Visit, class Record>
void visit_fields(Record& record, Visit&& visit) {
    std::apply([&](auto&... field) { (visit(field), ...); }, record.tie());
}

template <class Record>
    requires requires { Record::record; }
struct Field<Record> {
    static std::string spell() { return Record::record; }
    static Record read(Words& words) {
        const char* const outer = words.enter(Record::record);
        if (const std::string& found = words.next(); found != Record::record) words.refuse(found, Record::record);
        Record record{};
        visit_fields(record, [&]<class T>(T& field) { field = Field<T>::read(words); });
        words.enter(outer);
        return record;
    }
};

template <class... Records>
std::string describe() {
    std::string text = "version " + std::to_string(version);
    const auto add = [&]<class Record>(Record record) {
        text += std::string("\n") + Record::record + ": " + Record::fields;
        const char* before = ": ";
        visit_fields(record, [&]<class T>(T&) { text += std::exchange(before, ", ") + Field<T>::spell(); });
    };
    (add(Records()), ...);
    return text;
}

}  // namespace

template <class Record>
Record read(const std::vector<std::string>& message) {
    Words words(message);
    Record record = Field<Record>::read(words);
    words.end();
    return record;
}

template Recorded read<Recorded>(const std::vector<std::string>&);
template Routing read<Routing>(const std::vector<std::string>&);

c10::OperatorHandle find(const std::string& name) {
    const auto dot = name.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(name.substr(0, dot).c_str(),
                                                          dot == std::string::npos ? "" : name.c_str() + dot + 1);
}

std::string described() { return describe<Source, Recorded, Argument, Dimension, Pattern, Route, Routing>(); }

namespace {

OPWRIGHT_OPERATORS(m) {
    m.def("wire() -> str", [] { return described(); });
}

}  // namespace
}  // namespace opwright

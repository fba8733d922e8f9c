package mesh

import (
	"slices"
	"strings"
)

// KeysSource is what settings call the manifests in Consul's key-value store.
const KeysSource = "consul-kv"

// HostsFlag is the flag by which settings give names to the source, for people to copy. Names that cannot be
// patterns are left out; it is empty if none can.
func (b *Binding) HostsFlag(names ...Hostname) string { return HostsFlag(b.Source, names...) }

// CredentialsFlag is the flag by which settings give credentials to the source, for people to copy. Names that
// would need quotes of their own are left out; it is empty if all do.
func (b *Binding) CredentialsFlag(names ...string) string {
	var out []string
	for _, n := range names {
		if n != "" && strings.Trim(n, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:") == "" {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return "--config-credentials " + QuoteWord(placeOf(b.Source)+"="+strings.Join(out, ","))
}

// HostsFlag is [Binding.HostsFlag] of the source with a name.
func HostsFlag(source string, names ...Hostname) string {
	var patterns []string
	for _, n := range names {
		// What a manifest says becomes a part of a command only if it is nothing but a name.
		if p, err := ParseHostPattern(string(n)); err == nil && !slices.Contains(patterns, string(p)) {
			patterns = append(patterns, string(p))
		}
	}
	if len(patterns) == 0 {
		return ""
	}
	list := strings.Join(patterns, ",")
	if source == KeysSource {
		return "--consul-kv-hosts " + QuoteWord(list)
	}
	return "--config-hosts " + QuoteWord(placeOf(source)+"="+list)
}

// placeOf is a source in a flag; the one of an unknown source is for people to fill in.
func placeOf(source string) string {
	if source == "" {
		return "DIR"
	}
	return source
}

// QuoteWord makes one word of a text for a shell.
func QuoteWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Advice is how a bound source gets a name that it does not have.
type Advice struct {
	// Flag gives it the name; empty if no flag does.
	Flag string
	// Text is the same for people, or says what else to do.
	Text string
}

// advise says how a source gets a name for other namespaces. declares is set for one who declares the name, or an
// address, and not only routes it.
func (o *owners) advise(source int, h Hostname, namespace string, declares bool) Advice {
	b := o.bindings[source]
	what := "host"
	if isAddress(h) {
		what = "address"
	}
	flag := b.HostsFlag(h)
	if flag == "" {
		return Advice{Text: "no pattern can cover it: a source without a namespace can have it"}
	}
	if b.covers(h) {
		return Advice{Text: "a pattern gives it to this source already: give it to one of them only"}
	}
	for i, other := range o.bindings {
		if i == source || other == nil || b.shares(other) {
			continue
		}
		if p, is := other.overlaps(h); is {
			return Advice{Text: "if the " + what + " belongs to this source, take it out of the pattern " + string(p) + " of " + placeOf(other.Source) + " first, then write " + flag}
		}
	}
	if declares && o.exactlyDeclared(h, namespace) {
		return Advice{Text: "no pattern changes that: take the " + what + " out of one of the two objects"}
	}
	return Advice{Flag: flag, Text: "if the " + what + " belongs to this source, write " + flag}
}

// exactlyDeclared reports whether an unbound source declares exactly a name, or an address in another namespace:
// that comes before patterns.
func (o *owners) exactlyDeclared(h Hostname, namespace string) bool {
	if isAddress(h) && o.addressOfUnbound(h, false, func(svc *Service) bool { return !svc.Catalog && svc.Namespace != namespace }) != nil {
		return true
	}
	for svc := range o.declared(h, false) {
		if !svc.Catalog && svc.Hostname.canonical() == h {
			return true
		}
	}
	return false
}

package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables"
)

// String is the table as nft lists it.
func (r *Ruleset) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {", Table)
	part := func(write func(*strings.Builder)) {
		b.WriteByte('\n')
		write(&b)
	}
	for _, name := range r.counters {
		part(func(b *strings.Builder) { fmt.Fprintf(b, "\tcounter %s {\n\t\tpackets 0 bytes 0\n\t}\n", name) })
	}
	for i := range r.sets {
		part(r.sets[i].write)
	}
	for i := range r.chains {
		part(r.chains[i].write)
	}
	b.WriteString("}\n")
	return b.String()
}

func (s *set) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.name, s.key)
	if s.timeouts {
		b.WriteString("\t\tflags timeout\n")
	} else {
		b.WriteString("\t\tflags interval\n")
	}
	if s.comment != "" {
		fmt.Fprintf(b, "\t\tcomment %q\n", s.comment)
	}
	elements := s.elements()
	if len(elements) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elements, ",\n\t\t\t     "))
	}
	b.WriteString("\t}\n")
}

func (s *set) elements() []string {
	var out []string
	for _, i := range s.intervals {
		t := keyText(s.key, i.lo)
		if i.hi != i.lo {
			t += "-" + keyText(s.key, i.hi)
		}
		if s.timeout > 0 {
			t += " timeout " + durationText(s.timeout)
		}
		out = append(out, t)
	}
	for _, p := range s.prefixes {
		out = append(out, prefixText(p))
	}
	return out
}

func keyText(t keyType, k uint32) string {
	if t == keyProto && k == tcp {
		return "tcp"
	}
	return strconv.FormatUint(uint64(k), 10)
}

// prefixText is a range as nft writes it.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// durationText is a time as nft writes it.
func durationText(d time.Duration) string {
	const day = 24 * time.Hour
	var b strings.Builder
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.of; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d %= u.of
		}
	}
	return b.String()
}

func (c *chain) write(b *strings.Builder) {
	fmt.Fprintf(b, "\tchain %s {\n", c.name)
	if c.kind != "" {
		fmt.Fprintf(b, "\t\ttype %s hook %s priority %s; policy accept;\n", c.kind, c.hook, c.priorityText())
	}
	for _, r := range c.rules {
		words := make([]string, len(r))
		for i, s := range r {
			words[i] = s.text()
		}
		fmt.Fprintf(b, "\t\t%s\n", strings.Join(words, " "))
	}
	b.WriteString("\t}\n")
}

// priorityText is a priority as nft writes it: by a name where it has one.
func (c *chain) priorityText() string {
	switch {
	case c.kind == nftables.ChainTypeFilter && c.priority == 0:
		return "filter"
	case c.priority == rawPriority:
		return "raw"
	case c.hook == "prerouting" && c.priority == natPriority:
		return "dstnat - 5"
	default:
		return strconv.Itoa(int(c.priority))
	}
}

// keyBytes is a key as the kernel compares it.
func keyBytes(t keyType, k uint32) []byte {
	switch t {
	case keyProto:
		return []byte{byte(k)}
	case keyPort:
		return binary.BigEndian.AppendUint16(nil, uint16(k))
	default:
		return binary.BigEndian.AppendUint32(nil, k)
	}
}

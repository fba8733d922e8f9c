package capture

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Held is a table as the kernel had it right after it was applied.
type Held struct {
	sum        [sha256.Size]byte
	generation uint32 // of all tables of the kernel
}

// ErrBusy is the error for a table that was applied, and could not be read back, as other
// programs change tables all the time.
var ErrBusy = errors.New("other programs change tables of the kernel all the time")

// tries bounds how often something is done again that another program's change disturbed.
const tries = 5

// Hold applies a table and reads it back, for [Kernel.Holds]. The kernel numbers its changes: the
// number says whether another program changed anything between both.
//
// before is the same table as it was held before, or nil. If a table of ours was changed in a way
// that Apply does not undo, so that it reads otherwise than before, a new one takes its place.
func (k Kernel) Hold(r *Ruleset, before *Held) (*Held, error) {
	replace := false
	for range tries {
		last, err := k.generation()
		if err != nil {
			return nil, err
		}
		err = k.apply(r, replace)
		if err != nil && before != nil && !replace && !errors.Is(err, ErrForeign) {
			replace = true
			continue
		}
		if err != nil {
			return nil, err
		}
		h, err := k.read()
		switch {
		case errors.Is(err, ErrBusy):
		case err != nil:
			return nil, err
		case h.generation != last+1:
		case before == nil || replace || h.sum == before.sum:
			return h, nil
		default:
			replace = true
		}
	}
	return nil, ErrBusy
}

// Holds reports whether the kernel still has the table. It looks at chains, rules, sets with
// their elements, and names of counters; not at what changes by itself.
func (k Kernel) Holds(h *Held) (bool, error) {
	now, err := k.generation()
	if err != nil || now == h.generation {
		return err == nil, err
	}
	have, err := k.read()
	if err != nil {
		return false, err
	}
	if have.sum != h.sum {
		return false, nil
	}
	h.generation = have.generation
	return true, nil
}

// read reads the table, all of it between two changes.
func (k Kernel) read() (*Held, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	for range tries {
		before, err := generation(c)
		if err != nil {
			return nil, err
		}
		sum, err := fingerprint(c)
		if errors.Is(err, unix.ENOENT) { // the table is gone, or a part of it while it was read
			sum, err = [sha256.Size]byte{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading table %s: %w", Table, explainErrno(err))
		}
		after, err := generation(c)
		if err != nil {
			return nil, err
		}
		if before == after {
			return &Held{sum: sum, generation: after}, nil
		}
	}
	return nil, ErrBusy
}

// generation is the number of the kernel's last change of any table.
func (k Kernel) generation() (uint32, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return 0, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	return generation(c)
}

func generation(c *netlink.Conn) (uint32, error) {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, sizeNfGenMsg),
	})
	if err != nil {
		return 0, fmt.Errorf("reading the generation of the tables: %w", explainErrno(err))
	}
	for _, m := range msgs {
		if g, ok := readGeneration(m.Data); ok {
			return g.id, nil
		}
	}
	return 0, errors.New("reading the generation of the tables: the kernel does not say it")
}

// gen is a change of the kernel's tables, and who made it.
type gen struct {
	id, thread uint32
	program    string
}

func readGeneration(b []byte) (g gen, ok bool) {
	if len(b) < sizeNfGenMsg {
		return g, false
	}
	ad, err := netlink.NewAttributeDecoder(b[sizeNfGenMsg:])
	if err != nil {
		return g, false
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_GEN_ID:
			g.id, ok = ad.Uint32(), true
		case unix.NFTA_GEN_PROC_PID:
			g.thread = ad.Uint32()
		case unix.NFTA_GEN_PROC_NAME:
			g.program = ad.String()
		}
	}
	return g, ok && ad.Err() == nil
}

// dump lists objects of nf_tables: of family inet, or of all.
func dump(c *netlink.Conn, kind netlink.HeaderType, inet bool, of ...netlink.Attribute) ([]netlink.Message, error) {
	attrs, err := netlink.MarshalAttributes(of)
	if err != nil {
		return nil, err //nolint:wrapcheck // the callers say what of
	}
	head := make([]byte, sizeNfGenMsg)
	if inet {
		head[0] = byte(nftables.TableFamilyINet)
	}
	return c.Execute(netlink.Message{ //nolint:wrapcheck // the callers say what of
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: netlink.Request | netlink.Dump}, Data: append(head, attrs...),
	})
}

// part is a kind of objects of a table, and the attributes that it shall keep.
type part struct {
	kind, table uint16 // the message that lists it, and the attribute with the table's name
	keep        []uint16
}

// Attributes that the library has no names for, from linux/netfilter/nf_tables.h.
const objName, objType, elemKeyEnd = 2, 3, 10

// parts are all objects of a table but the elements of sets. Left out are handles, counts of
// uses, and values of counters.
func parts() []part {
	return []part{
		{unix.NFT_MSG_GETTABLE, unix.NFTA_TABLE_NAME, []uint16{unix.NFTA_TABLE_NAME, unix.NFTA_TABLE_FLAGS}},
		{unix.NFT_MSG_GETCHAIN, unix.NFTA_CHAIN_TABLE, []uint16{unix.NFTA_CHAIN_NAME, unix.NFTA_CHAIN_HOOK, unix.NFTA_CHAIN_POLICY, unix.NFTA_CHAIN_TYPE}},
		{unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, []uint16{unix.NFTA_SET_NAME, unix.NFTA_SET_FLAGS, unix.NFTA_SET_KEY_TYPE, unix.NFTA_SET_KEY_LEN, unix.NFTA_SET_DATA_TYPE}},
		{unix.NFT_MSG_GETOBJ, unix.NFTA_OBJ_TABLE, []uint16{objName, objType}},
		// In the order in which the kernel has them.
		{unix.NFT_MSG_GETRULE, unix.NFTA_RULE_TABLE, []uint16{unix.NFTA_RULE_CHAIN, unix.NFTA_RULE_EXPRESSIONS, unix.NFTA_RULE_USERDATA}},
	}
}

// fingerprint is a sum of what makes up our table. It fails with ENOENT if there is none.
func fingerprint(c *netlink.Conn) (out [sha256.Size]byte, err error) {
	h := sha256.New()
	var sets []string
	for _, p := range parts() {
		// Older kernels list the objects of all tables.
		msgs, err := dump(c, netlink.HeaderType(p.kind), true, netlink.Attribute{Type: p.table, Data: []byte(Table + "\x00")})
		if err != nil {
			return out, err
		}
		var list []string
		for _, m := range msgs {
			text, name, err := p.canonical(m.Data)
			if err != nil {
				return out, err
			}
			if text == "" {
				continue
			}
			list = append(list, text)
			if p.kind == unix.NFT_MSG_GETSET {
				sets = append(sets, name)
			}
		}
		if p.kind != unix.NFT_MSG_GETRULE {
			slices.Sort(list)
		}
		write(h, list)
	}
	slices.Sort(sets)
	for _, name := range sets {
		if strings.HasPrefix(name, aliveOf) { // these come and go with the Envoys
			continue
		}
		list, err := elements(c, name)
		if err != nil {
			return out, err
		}
		write(h, append([]string{name}, list...))
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// write adds texts to a sum, so that no other texts have the same sum.
func write(h hash.Hash, list []string) {
	for _, s := range append(list, "") {
		_ = binary.Write(h, binary.BigEndian, uint64(len(s)))
		_, _ = h.Write([]byte(s))
	}
}

// canonical is what an object shall keep, as a text that is empty for objects of other tables;
// and the object's name where that is the first attribute to keep.
func (p *part) canonical(b []byte) (text, name string, err error) {
	if len(b) < sizeNfGenMsg || b[0] != byte(nftables.TableFamilyINet) {
		return "", "", nil
	}
	ad, err := netlink.NewAttributeDecoder(b[sizeNfGenMsg:])
	if err != nil {
		return "", "", err //nolint:wrapcheck // the caller says what of
	}
	ours := false
	var out []byte
	for ad.Next() {
		if ad.Type() == p.table {
			ours = ad.String() == Table
		}
		if slices.Contains(p.keep, ad.Type()) {
			out = attribute(out, ad)
		}
		if ad.Type() == p.keep[0] {
			name = ad.String()
		}
	}
	if !ours {
		return "", "", ad.Err() //nolint:wrapcheck // the caller says what of
	}
	return string(out), name, ad.Err() //nolint:wrapcheck // the caller says what of
}

// attribute appends an attribute, with its length.
func attribute(out []byte, ad *netlink.AttributeDecoder) []byte {
	out = binary.BigEndian.AppendUint16(out, ad.Type())
	out = binary.BigEndian.AppendUint32(out, uint32(len(ad.Bytes())))
	return append(out, ad.Bytes()...)
}

// elements are those of a set, without how long they will stay.
func elements(c *netlink.Conn, set string) ([]string, error) {
	msgs, err := dump(c, unix.NFT_MSG_GETSETELEM, true,
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(Table + "\x00")},
		netlink.Attribute{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(set + "\x00")})
	if err != nil {
		return nil, err
	}
	keep := []uint16{unix.NFTA_SET_ELEM_KEY, elemKeyEnd, unix.NFTA_SET_ELEM_DATA, unix.NFTA_SET_ELEM_FLAGS, unix.NFTA_SET_ELEM_TIMEOUT}
	var out []string
	for _, m := range msgs {
		if len(m.Data) < sizeNfGenMsg {
			continue
		}
		ad, err := netlink.NewAttributeDecoder(m.Data[sizeNfGenMsg:])
		if err != nil {
			return nil, err //nolint:wrapcheck // the caller says what of
		}
		for ad.Next() {
			if ad.Type() != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					var one []byte
					list.Nested(func(e *netlink.AttributeDecoder) error {
						for e.Next() {
							if slices.Contains(keep, e.Type()) {
								one = attribute(one, e)
							}
						}
						return nil
					})
					out = append(out, string(one))
				}
				return nil
			})
		}
		if err := ad.Err(); err != nil {
			return nil, err //nolint:wrapcheck // the caller says what of
		}
	}
	slices.Sort(out)
	return out, nil
}

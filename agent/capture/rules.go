package capture

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// foundRule is a rule of the kernel, of any table.
type foundRule struct {
	table   *nftables.Table
	chain   string
	comment string
	exprs   []expr.Any // those that matter here
	// status is whether the rule looks at what conntrack did with a connection.
	status bool
}

// listRules reads the rules of all tables, or only those of our table. The library's own reader
// fails as a whole for a rule with "ct original", and nearly every firewall has some rule that a
// library does not know.
func (k Kernel) listRules(own bool) ([]foundRule, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.NetNS})
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	var of []netlink.Attribute
	if own {
		of = append(of, netlink.Attribute{Type: unix.NFTA_RULE_TABLE, Data: []byte(Table + "\x00")})
	}
	msgs, err := dump(c, unix.NFT_MSG_GETRULE, own, of...)
	if err != nil {
		return nil, fmt.Errorf("listing the rules of the kernel: %w", explainErrno(err))
	}
	var out []foundRule
	for _, m := range msgs {
		if len(m.Data) < sizeNfGenMsg {
			continue
		}
		r, err := readRule(m.Data)
		if err != nil {
			return nil, fmt.Errorf("reading a rule of the kernel: %w", err)
		}
		out = append(out, r)
	}
	return out, nil
}

func readRule(b []byte) (foundRule, error) {
	family := b[0]
	r := foundRule{table: &nftables.Table{Family: nftables.TableFamily(family)}}
	ad, err := netlink.NewAttributeDecoder(b[sizeNfGenMsg:])
	if err != nil {
		return r, err //nolint:wrapcheck // the caller says what of
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			r.table.Name = ad.String()
		case unix.NFTA_RULE_CHAIN:
			r.chain = ad.String()
		case unix.NFTA_RULE_USERDATA:
			r.comment, _ = userdata.GetString(ad.Bytes(), userdata.TypeComment)
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(list *netlink.AttributeDecoder) error {
				for list.Next() {
					list.Nested(func(one *netlink.AttributeDecoder) error {
						r.take(family, one)
						return nil
					})
				}
				return nil
			})
		}
	}
	return r, ad.Err() //nolint:wrapcheck // the caller says what of
}

// take adds one expression to a rule. One that cannot be read is left out.
func (r *foundRule) take(family byte, one *netlink.AttributeDecoder) {
	name := ""
	for one.Next() {
		switch one.Type() {
		case unix.NFTA_EXPR_NAME:
			name = one.String()
		case unix.NFTA_EXPR_DATA:
			if name == "ct" {
				r.status = r.status || readsStatus(one.Bytes())
				continue
			}
			e := exprOf(name)
			if e != nil && expr.Unmarshal(family, one.Bytes(), e) == nil {
				r.exprs = append(r.exprs, e)
			}
		}
	}
}

// exprOf is an empty expression of a kind that matters here, or nil.
func exprOf(name string) expr.Any {
	switch name {
	case "meta":
		return &expr.Meta{}
	case "payload":
		return &expr.Payload{}
	case "cmp":
		return &expr.Cmp{}
	case "range":
		return &expr.Range{}
	case "lookup":
		return &expr.Lookup{}
	case "redir":
		return &expr.Redir{}
	case "nat":
		return &expr.NAT{}
	case "match":
		return &expr.Match{}
	case "target":
		return &expr.Target{}
	default:
		return nil
	}
}

// readsStatus reports whether an expression of conntrack loads a connection's status.
func readsStatus(b []byte) bool {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return false
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		if ad.Type() == unix.NFTA_CT_KEY {
			return ad.Uint32() == unix.NFT_CT_STATUS
		}
	}
	return false
}

package capture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// Kernel reads and changes the table of a network namespace by netlink. Its methods need
// CAP_NET_ADMIN.
type Kernel struct {
	// NetNS is a file descriptor of the network namespace; 0 means that of the process.
	NetNS int
}

// ErrForeign is the error for a table of our name that is somebody else's.
var ErrForeign = errors.New("table inet " + Table + " is not Fairlead's: something else created it")

// ErrNoTable is the error for a host without a table of ours.
var ErrNoTable = errors.New("there is no table inet " + Table)

// ErrExpired is the error for a table that was not confirmed in time.
var ErrExpired = errors.New("it was not confirmed in time, and new connections go directly")

// State is what the kernel has.
type State struct {
	// Present is whether there is a table of ours.
	Present bool `json:"present"`
	// Draining is whether it is the table of the first step of a removal.
	Draining bool `json:"draining,omitempty"`
	// Capturing is whether new connections are captured.
	Capturing bool `json:"capturing"`
	// Remaining is how long they will be, without a beat or a confirmation; 0 means for ever.
	Remaining time.Duration `json:"remaining,omitempty"`
	// Alive has, by port, for how long connections go to each Envoy in open mode, and DNS queries to
	// each agent that takes them, unless it is reported as alive once more; 0 means that they go
	// directly.
	Alive map[uint16]time.Duration `json:"alive,omitempty"`
	// Counts are connections by counter.
	Counts map[string]uint64 `json:"counts,omitempty"`
}

func (k Kernel) conn() (*nftables.Conn, error) {
	c, err := nftables.New(nftables.WithNetNSFd(k.NetNS))
	if err != nil {
		return nil, fmt.Errorf("opening netlink: %w", err)
	}
	return c, nil
}

func ourTable() *nftables.Table {
	return &nftables.Table{Name: Table, Family: nftables.TableFamilyINet}
}

// present is the table of ours that the kernel has.
type present struct {
	chains  map[string]*nftables.Chain
	sets    map[string]*nftables.Set
	objects []*nftables.NamedObj
}

// owned returns what the kernel has of our table, or nil. It fails with [ErrForeign] if the table
// is somebody else's.
func (k Kernel) owned(c *nftables.Conn) (*present, error) {
	tables, err := c.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("listing the tables of the kernel: %w", explainErrno(err))
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == Table }) {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("listing the chains of the kernel: %w", err)
	}
	p := &present{chains: map[string]*nftables.Chain{}, sets: map[string]*nftables.Set{}}
	for _, ch := range chains {
		if ch.Table.Name == Table {
			p.chains[ch.Name] = ch
		}
	}
	list, err := k.listRules(true)
	if err != nil {
		return nil, err
	}
	rules, marked := 0, false
	for i := range list {
		if ours(list[i].table) {
			rules++
			marked = marked || list[i].comment == Owner
		}
	}
	if rules > 0 && !marked { // without any rule, somebody has flushed it
		return nil, ErrForeign
	}
	sets, err := c.GetSets(ourTable())
	if err != nil {
		return nil, fmt.Errorf("listing the sets of table %s: %w", Table, err)
	}
	for _, s := range sets {
		p.sets[s.Name] = s
	}
	objects, err := c.GetNamedObjects(ourTable())
	if err != nil {
		return nil, fmt.Errorf("listing the counters of table %s: %w", Table, err)
	}
	for _, o := range objects {
		if named, ok := o.(*nftables.NamedObj); ok {
			p.objects = append(p.objects, named)
		}
	}
	return p, nil
}

// fits reports whether the table can be changed into another one where it is.
func (p *present) fits(r *Ruleset) bool {
	for i := range r.chains {
		want, have := r.chains[i].kernel(ourTable()), p.chains[r.chains[i].name]
		if have == nil {
			continue
		}
		if have.Type != want.Type || (have.Hooknum == nil) != (want.Hooknum == nil) ||
			have.Hooknum != nil && (*have.Hooknum != *want.Hooknum || *have.Priority != *want.Priority) {
			return false
		}
	}
	for i := range r.sets {
		want, _ := r.sets[i].kernel(ourTable())
		have := p.sets[want.Name]
		if have != nil && (have.KeyType.Name != want.KeyType.Name || have.Interval != want.Interval || have.HasTimeout != want.HasTimeout) {
			return false
		}
	}
	return true
}

// Apply has the kernel have a table, in one transaction. On an error the kernel keeps the table
// that it had.
//
// A table of ours is changed where it is: its chains get other rules, its sets other elements. A
// new table in its place would let a connection through now and then: the kernel switches all
// chains at one moment, and a packet may be past the chain that has no rules yet, and in front of
// the one that has none any more.
func (k Kernel) Apply(r *Ruleset) error { return k.apply(r, false) }

// apply is Apply, or puts a new table in the place of one of ours.
func (k Kernel) apply(r *Ruleset, replace bool) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	have, err := k.owned(c)
	if err != nil {
		return err
	}
	t := ourTable()
	if have == nil || replace || !have.fits(r) {
		c.AddTable(t) // so that there is one to delete
		c.DelTable(t)
		have = &present{}
	}
	c.AddTable(t) // of one that is there it ends what another program may have set: that it sleeps
	if err := r.change(c, t, have); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("applying the table: %w", explainErrno(err))
	}
	return nil
}

// change adds to a transaction what makes a table of what the kernel has.
func (r *Ruleset) change(c *nftables.Conn, t *nftables.Table, have *present) error {
	for _, ch := range have.chains {
		c.FlushChain(ch)
	}
	for name, ch := range have.chains {
		if !slices.ContainsFunc(r.chains, func(w chain) bool { return w.name == name }) {
			c.DelChain(ch)
		}
	}
	for name, s := range have.sets {
		if !slices.ContainsFunc(r.sets, func(w set) bool { return w.name == name }) {
			c.DelSet(s)
		}
	}
	for _, o := range have.objects {
		if o.Type != nftables.ObjTypeCounter || !slices.Contains(r.counters, o.Name) {
			c.DeleteObject(o)
		}
	}
	for _, name := range r.counters { // one that is there goes on counting
		c.AddObj(&nftables.NamedObj{Table: t, Name: name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
	}
	sets := map[string]*nftables.Set{}
	for i := range r.sets {
		s, elements := r.sets[i].kernel(t)
		s.ID = uint32(i + 1) // of this transaction; the library would count them in a variable of all goroutines
		var err error
		if have.sets[s.Name] == nil {
			err = c.AddSet(s, elements)
		} else if c.FlushSet(s); len(elements) > 0 {
			err = c.SetAddElements(s, elements)
		}
		if err != nil {
			return fmt.Errorf("adding set %s: %w", s.Name, err)
		}
		sets[s.Name] = s
	}
	chains := map[string]*nftables.Chain{}
	for i := range r.chains {
		ch := r.chains[i].kernel(t)
		if have.chains[ch.Name] == nil || ch.Type != "" { // of one that is there it sets the policy
			c.AddChain(ch)
		}
		chains[ch.Name] = ch
	}
	for i := range r.chains {
		for _, rl := range r.chains[i].rules {
			kr := &nftables.Rule{Table: t, Chain: chains[r.chains[i].name]}
			for _, s := range rl {
				kr.Exprs = append(kr.Exprs, s.exprs(sets)...)
				if text, ok := s.(comment); ok {
					kr.UserData = userdata.AppendString(nil, userdata.TypeComment, string(text))
				}
			}
			c.AddRule(kr)
		}
	}
	return nil
}

func (c *chain) kernel(t *nftables.Table) *nftables.Chain {
	out := &nftables.Chain{Name: c.name, Table: t}
	if c.kind == "" {
		return out
	}
	out.Type, out.Priority, out.Policy = c.kind, new(nftables.ChainPriority(c.priority)), new(nftables.ChainPolicyAccept)
	switch c.hook {
	case "output":
		out.Hooknum = nftables.ChainHookOutput
	case "prerouting":
		out.Hooknum = nftables.ChainHookPrerouting
	default:
		out.Hooknum = nftables.ChainHookInput
	}
	return out
}

// kernel is a set as the kernel gets it, with its elements.
func (s *set) kernel(t *nftables.Table) (*nftables.Set, []nftables.SetElement) {
	types := map[keyType]nftables.SetDatatype{
		keyProto: nftables.TypeInetProto, keyUID: nftables.TypeUID, keyPort: nftables.TypeInetService,
		keyIP4: nftables.TypeIPAddr, keyIP6: nftables.TypeIP6Addr,
	}
	out := &nftables.Set{
		Table: t, Name: s.name, KeyType: types[s.key], Interval: !s.timeouts, HasTimeout: s.timeouts, Comment: s.comment,
	}
	var elements []nftables.SetElement
	for _, i := range s.intervals {
		e := nftables.SetElement{Key: keyBytes(s.key, i.lo), Timeout: s.timeout}
		elements = append(elements, e)
		if out.Interval && (s.key != keyPort || i.hi != highestPort) { // an interval up to the highest key has no end
			elements = append(elements, nftables.SetElement{Key: keyBytes(s.key, i.hi+1), IntervalEnd: true})
		}
	}
	for _, p := range s.prefixes {
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		if end := beyond(p); end != nil {
			elements = append(elements, nftables.SetElement{Key: end, IntervalEnd: true})
		}
	}
	return out, elements
}

// State reads what the kernel has.
func (k Kernel) State() (State, error) {
	c, err := k.conn()
	if err != nil {
		return State{}, err
	}
	have, err := k.owned(c)
	if err != nil || have == nil {
		return State{}, err
	}
	st := State{Present: true}
	alive := have.sets[setAlive]
	if alive == nil {
		st.Draining = true
		return st, nil
	}
	elements, err := c.GetSetElements(alive)
	if err != nil {
		return st, fmt.Errorf("listing the elements of set %s: %w", setAlive, err)
	}
	for _, e := range elements {
		st.Capturing, st.Remaining = true, e.Expires
	}
	for name, s := range have.sets {
		port, ok := alivePort(name)
		if !ok {
			continue
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return st, fmt.Errorf("listing the elements of set %s: %w", name, err)
		}
		if st.Alive == nil {
			st.Alive = map[uint16]time.Duration{}
		}
		st.Alive[port] = 0
		for _, e := range elements {
			st.Alive[port] = e.Expires
		}
	}
	st.Counts = map[string]uint64{}
	for _, o := range have.objects {
		if n, ok := o.Obj.(*expr.Counter); ok {
			st.Counts[o.Name] = n.Packets
		}
	}
	return st, nil
}

// Switch has new connections captured for a time from now on; 0 means for ever. One transaction
// replaces the element that switches capture on: to add it once more would not extend its time.
func (k Kernel) Switch(timeout time.Duration) error {
	return k.extend(map[string]time.Duration{setAlive: timeout})
}

// Beat has new connections go to Envoys in open mode, and DNS queries to agents, for a time from now
// on, by their ports. Times are above 0. It fails with [ErrNoTable] for a port that the table does not
// switch.
func (k Kernel) Beat(of map[uint16]time.Duration) error {
	sets := map[string]time.Duration{}
	for port, timeout := range of {
		sets[aliveOf+portText(port)] = timeout
	}
	return k.extend(sets)
}

// extend replaces the elements of sets with timeouts, in one transaction.
func (k Kernel) extend(sets map[string]time.Duration) error {
	c, err := k.conn()
	if err != nil {
		return err
	}
	have, err := k.owned(c)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		if have == nil || have.sets[name] == nil {
			return ErrNoTable
		}
		s := &nftables.Set{Table: ourTable(), Name: name, KeyType: nftables.TypeInetProto, HasTimeout: true}
		element := func(d time.Duration) []nftables.SetElement {
			var out []nftables.SetElement
			for _, proto := range switched(name) {
				out = append(out, nftables.SetElement{Key: keyBytes(keyProto, proto), Timeout: d})
			}
			return out
		}
		// It may be there or not: after the first step it is.
		err = errors.Join(c.SetAddElements(s, element(sets[name])), c.SetDeleteElements(s, element(0)), c.SetAddElements(s, element(sets[name])))
		if err != nil {
			return fmt.Errorf("switching capture on: %w", err)
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("switching capture on: %w", explainErrno(err))
	}
	return nil
}

// Confirm makes an applied table stay. save, which may be nil, is called when it still captures,
// and before it stays. It fails with [ErrExpired] if capture has ended already.
func (k Kernel) Confirm(save func() error) error {
	st, err := k.State()
	switch {
	case err != nil:
		return err
	case !st.Present || st.Draining:
		return ErrNoTable
	case !st.Capturing:
		return ErrExpired
	}
	if save != nil {
		if err := save(); err != nil {
			return err
		}
	}
	return k.Switch(0)
}

// drainLook is how often conntrack is read during a removal.
const drainLook = 500 * time.Millisecond

// Remove removes the table in two steps: first new connections go directly while captured ones
// go on, and when none is left, or after wait, the table is deleted. envoys are the ports that
// connections were redirected to. It returns how many captured connections it cut off. If ctx
// ends before, the table of the first step stays.
func (k Kernel) Remove(ctx context.Context, envoys []uint16, wait time.Duration) (cut int, err error) {
	c, err := k.conn()
	if err != nil {
		return 0, err
	}
	if have, err := k.owned(c); err != nil || have == nil {
		return 0, err
	}
	if err := k.Apply(drained()); err != nil {
		return 0, err
	}
	ctx2, end := context.WithTimeout(ctx, wait)
	defer end()
	tick := time.NewTicker(drainLook)
	defer tick.Stop()
	for {
		if cut, err = k.captured(envoys); err != nil {
			return 0, err
		}
		if cut == 0 || ctx2.Err() != nil {
			break
		}
		select {
		case <-ctx2.Done():
		case <-tick.C:
		}
	}
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("waiting for captured connections: %w", err)
	}
	c.DelTable(ourTable())
	if err := c.Flush(); err != nil {
		return 0, fmt.Errorf("deleting the table: %w", explainErrno(err))
	}
	return cut, nil
}

// explainErrno says what the kernel's answer means.
func explainErrno(err error) error {
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w: it needs CAP_NET_ADMIN: run it as root", err)
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.EAFNOSUPPORT), errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("%w: the kernel lacks a part of nf_tables: it needs Linux 5.2 or later with nf_tables, nft_redir, nft_fib and nft_ct", err)
	default:
		return err
	}
}

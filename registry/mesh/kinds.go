package mesh

import (
	"fmt"
	"iter"
	"reflect"
	"slices"
	"strconv"
)

// kinds are the kinds of objects that sources contribute, except MeshConfig. Code for
// objects of every kind uses this table. A new kind needs a type, a list in [Fragment], one
// in [Snapshot], and a line here.
//
//nolint:gochecknoglobals // a table; never written to
var kinds = []kind{
	kindOf[*Service]{
		fragment: func(f *Fragment) *[]*Service { return &f.Services },
		order:    compareServiceKeys,
		snapshot: func(s *Snapshot) *[]*Service { return &s.Services },
		rank:     CompareServices,
		joined:   true,
	},
	kindOf[*Workload]{
		fragment: func(f *Fragment) *[]*Workload { return &f.Workloads },
		order:    compareKeys[*Workload],
		snapshot: func(s *Snapshot) *[]*Workload { return &s.Workloads },
		rank:     compareKeys[*Workload],
		joined:   true,
	},
	kindOf[*WorkloadGroup]{
		fragment:   func(f *Fragment) *[]*WorkloadGroup { return &f.WorkloadGroups },
		order:      compareKeys[*WorkloadGroup],
		snapshot:   func(s *Snapshot) *[]*WorkloadGroup { return &s.WorkloadGroups },
		rank:       compareKeys[*WorkloadGroup],
		print:      func(p *printer, x *WorkloadGroup) { p.message(x.Spec); p.message(x.ProxyConfig) },
		notInbound: true,
	},
	kindOf[*VirtualService]{
		fragment: func(f *Fragment) *[]*VirtualService { return &f.VirtualServices },
		order:    compareKeys[*VirtualService],
		snapshot: func(s *Snapshot) *[]*VirtualService { return &s.VirtualServices },
		rank:     compareAge[*VirtualService],
		print: func(p *printer, x *VirtualService) {
			p.message(x.Spec)
			p.text(x.ExportTo...)
			p.text(x.Refused.String())
		},
		notInbound: true,
	},
	kindOf[*DestinationRule]{
		fragment: func(f *Fragment) *[]*DestinationRule { return &f.DestinationRules },
		order:    compareKeys[*DestinationRule],
		snapshot: func(s *Snapshot) *[]*DestinationRule { return &s.DestinationRules },
		rank:     compareAge[*DestinationRule],
		print: func(p *printer, x *DestinationRule) {
			p.message(x.Spec)
			p.message(x.SpecElsewhere())
			p.text(strconv.FormatBool(x.LimitTables))
			p.text(x.ExportTo...)
		},
	},
	kindOf[*Gateway]{
		fragment:   func(f *Fragment) *[]*Gateway { return &f.Gateways },
		order:      compareKeys[*Gateway],
		snapshot:   func(s *Snapshot) *[]*Gateway { return &s.Gateways },
		rank:       CompareGateways,
		print:      func(p *printer, x *Gateway) { p.message(x.Spec); p.text(fmt.Sprint(x.CreateIndex, x.Tenant)) },
		notInbound: true, // it is for gateways, wherever they are
	},
	kindOf[*Sidecar]{
		fragment: func(f *Fragment) *[]*Sidecar { return &f.Sidecars },
		order:    compareKeys[*Sidecar],
		snapshot: func(s *Snapshot) *[]*Sidecar { return &s.Sidecars },
		rank:     compareAge[*Sidecar],
		print:    func(p *printer, x *Sidecar) { p.message(x.Spec) },
	},
	kindOf[*PeerAuthentication]{
		fragment: func(f *Fragment) *[]*PeerAuthentication { return &f.PeerAuthentications },
		order:    compareKeys[*PeerAuthentication],
		snapshot: func(s *Snapshot) *[]*PeerAuthentication { return &s.PeerAuthentications },
		rank:     compareAge[*PeerAuthentication],
		print:    func(p *printer, x *PeerAuthentication) { p.message(x.Spec) },
	},
	kindOf[*RequestAuthentication]{
		fragment: func(f *Fragment) *[]*RequestAuthentication { return &f.RequestAuthentications },
		order:    compareKeys[*RequestAuthentication],
		snapshot: func(s *Snapshot) *[]*RequestAuthentication { return &s.RequestAuthentications },
		rank:     compareAge[*RequestAuthentication],
		keyed:    true,
		print:    func(p *printer, x *RequestAuthentication) { p.message(x.Spec); p.text(x.Keys...) },
	},
	kindOf[*AuthorizationPolicy]{
		fragment: func(f *Fragment) *[]*AuthorizationPolicy { return &f.AuthorizationPolicies },
		order:    compareKeys[*AuthorizationPolicy],
		snapshot: func(s *Snapshot) *[]*AuthorizationPolicy { return &s.AuthorizationPolicies },
		rank:     compareKeys[*AuthorizationPolicy],
		print:    func(p *printer, x *AuthorizationPolicy) { p.message(x.Spec); p.text(strconv.FormatBool(x.DryRun)) },
	},
	kindOf[*Telemetry]{
		fragment: func(f *Fragment) *[]*Telemetry { return &f.Telemetries },
		order:    compareKeys[*Telemetry],
		snapshot: func(s *Snapshot) *[]*Telemetry { return &s.Telemetries },
		rank:     compareAge[*Telemetry],
		print:    func(p *printer, x *Telemetry) { p.message(x.Spec) },
	},
	kindOf[*ProxyConfig]{
		fragment:   func(f *Fragment) *[]*ProxyConfig { return &f.ProxyConfigs },
		order:      compareKeys[*ProxyConfig],
		snapshot:   func(s *Snapshot) *[]*ProxyConfig { return &s.ProxyConfigs },
		rank:       compareAge[*ProxyConfig],
		print:      func(p *printer, x *ProxyConfig) { p.message(x.Spec) },
		notInbound: true, // it is for agents
	},
	kindOf[*Unenforced]{
		fragment: func(f *Fragment) *[]*Unenforced { return &f.Unenforced },
		order:    compareKeys[*Unenforced],
		snapshot: func(s *Snapshot) *[]*Unenforced { return &s.Unenforced },
		rank:     compareKeys[*Unenforced],
		print:    func(p *printer, x *Unenforced) { p.labels(x.Selector); p.text(x.Field) },
	},
}

// kind is a kind of objects. Each method handles the lists of one kind in a fragment or
// snapshot.
type kind interface {
	// add appends the objects of a piece to a fragment.
	add(to, piece *Fragment)
	// replace takes the objects of some pieces out of a fragment, and puts those of
	// others in.
	replace(f *Fragment, out, in []*Fragment)
	// keep puts the objects of the keys into next as prev has them.
	keep(prev, next *Fragment, keys map[Key]bool)
	sorted(f *Fragment) bool
	sort(f *Fragment)
	// same reports whether two fragments hold the same pointers.
	same(a, b *Fragment) bool
	all(f *Fragment) iter.Seq2[*Meta, any]
	has(f *Fragment, key Key) bool

	// endpoints reports whether the objects are endpoints, and not configuration.
	endpoints() bool
	// compare notes in d what differs between two fragments of one source.
	compare(d *Diff, prev, next *Fragment) sortedness
	changes(d *Diff) iter.Seq[objectChange]
	// changed is the number of changes.
	changed(d *Diff) int

	// merge decides who has each key, and notes in d what differs from before.
	merge(t, prev *tables, d *Diff, fragments []*Fragment)
	conflicts(t *tables) []Conflict
	// publish fills the list of a snapshot, but for services, workloads and what has keys.
	publish(s, prev *Snapshot, d *Diff)
	// fingerprint writes the list of a snapshot, but for services and workloads.
	fingerprint(p *printer, s *Snapshot)
	// since notes in d what differs between two snapshots.
	since(d *Diff, prev, next *Snapshot)
	// part splits each change in d of an object that moved in the list of a snapshot into a
	// removal and an addition.
	part(d *Diff)
	// policies reports whether the objects apply to the workloads of their namespace.
	policies() bool
}

// objectChange is one object that differs; one of the two is nil where it was
// added or removed.
type objectChange struct {
	Old, New *Meta
	Reach    Reach
}

// newest is the object as it is, or as it was.
func (c objectChange) newest() *Meta {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

// kindOf implements kind.
type kindOf[T object] struct {
	fragment func(*Fragment) *[]T
	// order is that of the list in a fragment: by key.
	order func(a, b T) int
	// snapshot is the list in a snapshot, and rank its order.
	snapshot func(*Snapshot) *[]T
	rank     func(a, b T) int
	// joined says that what is in force depends on more than the objects of the kind, such
	// as catalogs and health. Such lists have code of their own.
	joined bool
	// keyed says that the list of a snapshot has more than the objects of the kind: the keys
	// of issuers, which are laid over them after the merge.
	keyed bool
	// print writes what a reader could see of an object besides its Meta.
	print func(*printer, T)
	// notInbound says that objects do not change how a workload accepts requests: they are
	// about its own requests, or about no workload yet. Objects of all other kinds, except
	// services and workloads, apply to the workloads of their namespace; those of the root
	// namespace apply to all.
	notInbound bool
}

func (k kindOf[T]) list(f *Fragment) []T { return *k.fragment(f) }

func (k kindOf[T]) add(to, piece *Fragment) {
	list := k.fragment(to)
	*list = append(*list, k.list(piece)...)
}

func (k kindOf[T]) replace(f *Fragment, out, in []*Fragment) {
	var deltas []Delta[T]
	for _, piece := range out {
		for _, x := range k.list(piece) {
			deltas = append(deltas, Delta[T]{Old: x})
		}
	}
	for _, piece := range in {
		for _, x := range k.list(piece) {
			deltas = append(deltas, Delta[T]{New: x})
		}
	}
	list := k.fragment(f)
	*list = patched(*list, deltas, k.order)
}

func (k kindOf[T]) keep(prev, next *Fragment, keys map[Key]bool) {
	var kept []T
	for _, x := range k.list(prev) {
		if keys[x.meta().Key] {
			kept = append(kept, x)
		}
	}
	if len(kept) == 0 {
		return
	}
	list := k.fragment(next)
	out := make([]T, 0, len(*list)+len(kept))
	for _, x := range *list {
		if !keys[x.meta().Key] {
			out = append(out, x)
		}
	}
	out = append(out, kept...)
	slices.SortStableFunc(out, k.order)
	*list = out
}

func (k kindOf[T]) sorted(f *Fragment) bool { return slices.IsSortedFunc(k.list(f), k.order) }

func (k kindOf[T]) sort(f *Fragment) {
	list := k.fragment(f)
	*list = sorted(*list, k.order)
}

func (k kindOf[T]) same(a, b *Fragment) bool { return slices.Equal(k.list(a), k.list(b)) }

func (k kindOf[T]) all(f *Fragment) iter.Seq2[*Meta, any] {
	return func(yield func(*Meta, any) bool) {
		for _, x := range k.list(f) {
			if !yield(x.meta(), x) {
				return
			}
		}
	}
}

func (k kindOf[T]) has(f *Fragment, key Key) bool { return len(span(k.list(f), key)) > 0 }

func (k kindOf[T]) compare(d *Diff, prev, next *Fragment) sortedness {
	deltas, is := diff(k.list(prev), k.list(next), k.order)
	note(d, deltas)
	return is
}

func (kindOf[T]) endpoints() bool { return reflect.TypeFor[T]() == reflect.TypeFor[*Workload]() }

func (kindOf[T]) changes(d *Diff) iter.Seq[objectChange] {
	return func(yield func(objectChange) bool) {
		var zero T
		for _, x := range DeltasOf[T](d) {
			c := objectChange{Reach: reachOfDelta(x)}
			if x.Old != zero {
				c.Old = x.Old.meta()
			}
			if x.New != zero {
				c.New = x.New.meta()
			}
			if !yield(c) {
				return
			}
		}
	}
}

func (kindOf[T]) changed(d *Diff) int { return len(DeltasOf[T](d)) }

func (k kindOf[T]) merge(t, prev *tables, d *Diff, fragments []*Fragment) {
	lists := make([][]T, len(fragments))
	for i, f := range fragments {
		if f != nil { // one that has delivered nothing keeps its place
			lists[i] = k.list(f)
		}
	}
	merged, deltas := mergeTable(tableOf[T](prev), lists, k.order)
	t.kinds[reflect.TypeFor[T]()] = merged
	note(d, deltas)
}

func (kindOf[T]) conflicts(t *tables) []Conflict { return tableOf[T](t).conflicts }

func (k kindOf[T]) publish(s, prev *Snapshot, d *Diff) {
	if !k.joined && !k.keyed {
		*k.snapshot(s) = reorder(*k.snapshot(prev), tableOf[T](&s.tables).merged, DeltasOf[T](d), k.rank)
	}
}

func (k kindOf[T]) fingerprint(p *printer, s *Snapshot) {
	if !k.joined {
		printAll(p, *k.snapshot(s), func(x T) { k.print(p, x) })
	}
}

func (k kindOf[T]) since(d *Diff, prev, next *Snapshot) {
	note(d, DiffLists(*k.snapshot(prev), *k.snapshot(next), k.rank))
}

func (k kindOf[T]) part(d *Diff) {
	var zero T
	var out []Delta[T]
	deltas := DeltasOf[T](d)
	for i, x := range deltas {
		moved := x.Old != zero && x.New != zero && k.rank(x.Old, x.New) != 0
		if moved && out == nil {
			out = slices.Clone(deltas[:i])
		}
		switch {
		case moved:
			out = append(out, Delta[T]{Old: x.Old}, Delta[T]{New: x.New})
		case out != nil:
			out = append(out, x)
		}
	}
	if out != nil {
		note(d, out)
	}
}

func (k kindOf[T]) policies() bool { return !k.joined && !k.notInbound }

// tableOf is the merged table of a kind; never nil.
func tableOf[T object](t *tables) *table[T] {
	if have, ok := t.kinds[reflect.TypeFor[T]()].(*table[T]); ok {
		return have
	}
	return &table[T]{}
}

(** * Execution: what a graph does when torch runs it

    Nodes run in order.  A tensor is a view of a storage; a storage has one content, and whoever writes
    through a view changes what every other view of that storage shows.  Operators are what their
    signature says.  What they compute is left open: any functions, which are handed what the signature
    lets an operator see, and nothing else. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names.

(** ** Operators *)

(** Where the result of a call lies: in new memory, in that of one argument, or in either. *)
Inductive sharing : Type :=
| Fresh
| View (i : nat)
| Maybe (is : list nat).

Record operator : Type := Operator {
  symbol : nat;              (** its name, with the arguments that are no tensors *)
  shares : sharing;
  writes : list nat;         (** the arguments whose memory a call writes *)
  switches : bool;           (** it changes a mode: gradients, autocast, ... *)
  draws : bool;              (** it samples random numbers *)
  acts : bool                (** it has an effect outside of its tensors, or sees the outside *)
}.

(** ** Graphs *)

(** [Same m] gives a value one more name; a rewrite that returns an operand does so. *)
Inductive definition : Type :=
| Call (f : operator) (args : list name)
| Same (m : name).

Definition node : Type := name * definition.
Definition graph : Type := list node.

Definition reads (d : definition) : list name :=
  match d with Call _ args => args | Same m => [m] end.

(** It samples random numbers or acts; such nodes are never moved past each other. *)
Definition effectful (x : node) : bool :=
  match snd x with Call f _ => draws f || acts f | Same _ => false end.

Definition writes_nothing (x : node) : bool :=
  match snd x with
  | Call f _ => match writes f with [] => true | _ => false end
  | Same _ => true
  end.

Definition keeps_modes (x : node) : bool :=
  match snd x with Call f _ => negb (switches f) | Same _ => true end.

(** Nothing that a computation may not move past. *)
Definition quiet (x : node) : bool := writes_nothing x && keeps_modes x.

(** ** What operators compute *)

(** What a call sees besides the values of its arguments.  The history of effects stands for the
    outside world: what a process receives may depend on all that it has sent. *)
Record surroundings (mode generator event : Type) : Type := Surroundings {
  seen_mode : mode;
  seen_generator : option generator;
  seen_history : option (list event)
}.
Arguments Surroundings {mode generator event}.

Class Torch : Type := {
  value : Type;              (** contents of storages, and what views show of them *)
  mode : Type;
  generator : Type;          (** the position in a stream of random numbers *)
  lens : Type;               (** a part of a value, or another arrangement of it *)
  get : lens -> value -> value;
  put : lens -> value -> value -> value;       (** [put l v w]: [v], with [w] as this part *)
  fits : value -> value -> Prop;               (** [fits v w]: [w] has the shape of [v] *)
  put_fits : forall l v w, fits (get l v) w -> fits v (put l v w);
  sees : Type := surroundings mode generator (operator * list value);
  result : operator -> sees -> list value -> value;          (** the content of new memory *)
  chosen : operator -> sees -> list value -> option nat;     (** where it may be a view: of what *)
  part : operator -> sees -> list value -> lens;             (** where it is a view: which part *)
  written : operator -> sees -> list value -> nat -> value;  (** what is written to an argument *)
  next_mode : operator -> sees -> list value -> mode;
  next_generator : operator -> sees -> list value -> generator
}.

Section Execution.
Context {τ : Torch}.

Definition event : Type := operator * list value.

(** ** Memory *)

(** Storages that inputs bring with them, in classes, of which only different ones are known to be
    apart; and those that a node has made. *)
Inductive storage : Type :=
| Given (class index : nat)
| Made (n : name).

Definition storage_eq_dec : forall s s' : storage, {s = s'} + {s <> s'}.
Proof. repeat decide equality. Defined.

(** A view of a view is a longer path. *)
Record tensor : Type := Tensor { home : storage; path : list lens }.

Definition look_at (p : list lens) (v : value) : value := fold_left (fun v l => get l v) p v.

Fixpoint put_at (p : list lens) (v w : value) : value :=
  match p with
  | [] => w
  | l :: p => put l v (put_at p (get l v) w)
  end.

Definition memory : Type := storage -> value.

Definition update (h : memory) (s : storage) (v : value) : memory :=
  fun s' => if storage_eq_dec s s' then v else h s'.

Definition write (h : memory) (t : tensor) (w : value) : memory :=
  update h (home t) (put_at (path t) (h (home t)) w).

(** ** States *)

Record state : Type := State {
  heap : memory;
  env : name -> tensor;
  now_mode : mode;
  now_generator : generator;
  history : list event
}.

Definition bind (e : name -> tensor) (n : name) (t : tensor) : name -> tensor :=
  fun m => if Nat.eqb n m then t else e m.

(** What a name shows at present. *)
Definition look (σ : state) (n : name) : value := look_at (path (env σ n)) (heap σ (home (env σ n))).

(** A call sees the mode; it sees the generator only if it draws, and the world only if it acts. *)
Definition sight (f : operator) (m : mode) (g : generator) (h : list event) : sees :=
  Surroundings m (if draws f then Some g else None) (if acts f then Some h else None).

Definition surround (f : operator) (σ : state) : sees :=
  sight f (now_mode σ) (now_generator σ) (history σ).

(** The argument that the result of a call is a view of, if it is one. *)
Definition viewed (f : operator) (args : list name) (c : sees) (vs : list value) : option name :=
  match shares f with
  | Fresh => None
  | View i => nth_error args i
  | Maybe is =>
      match chosen f c vs with
      | Some i => if mem i is then nth_error args i else None
      | None => None
      end
  end.

Definition write_argument (σ : state) (args : list name) (new : nat -> value) (h : memory) (i : nat)
    : memory :=
  match nth_error args i with
  | Some a => write h (env σ a) (new i)
  | None => h
  end.

Definition step (σ : state) (x : node) : state :=
  let (n, d) := x in
  match d with
  | Same m => State (heap σ) (bind (env σ) n (env σ m)) (now_mode σ) (now_generator σ) (history σ)
  | Call f args =>
      let c := surround f σ in
      let vs := map (look σ) args in
      let h := fold_left (write_argument σ args (written f c vs)) (writes f) (heap σ) in
      let ht :=
        match viewed f args c vs with
        | Some a => (h, Tensor (home (env σ a)) (path (env σ a) ++ [part f c vs]))
        | None => (update h (Made n) (result f c vs), Tensor (Made n) [])
        end in
      State (fst ht) (bind (env σ) n (snd ht))
        (if switches f then next_mode f c vs else now_mode σ)
        (if draws f then next_generator f c vs else now_generator σ)
        (if acts f then history σ ++ [(f, vs)] else history σ)
  end.

Definition run (g : graph) (σ : state) : state := fold_left step g σ.

(** ** Outcomes *)

(** The caller writes [w] to the tensor [n]. *)
Definition overwrite (σ : state) (n : name) (w : value) : state :=
  State (write (heap σ) (env σ n) w) (env σ) (now_mode σ) (now_generator σ) (history σ).

(** The names [ns] show the same, at first and after each of [k] writes to them.  So two tensors of one
    storage are the same parts of it, relative to each other: what is written to one shows in the
    other, or does not. *)
Fixpoint same_shown (k : nat) (ns : list name) (σ σ' : state) : Prop :=
  map (look σ) ns = map (look σ') ns /\
  match k with
  | 0 => True
  | S k => forall n w, In n ns -> fits (look σ n) w ->
      same_shown k ns (overwrite σ n w) (overwrite σ' n w)
  end.

(** All that a caller can observe: what results and inputs show, whatever it writes to them; which of
    them share memory; the memory that was given, the effects in order, and how far the stream of
    random numbers and the modes have come. *)
Record same_outcome (inputs outputs : list name) (σ σ' : state) : Prop := {
  same_results : forall k, same_shown k (inputs ++ outputs) σ σ';
  same_sharing : forall n m, In n (inputs ++ outputs) -> In m (inputs ++ outputs) ->
    (home (env σ n) = home (env σ m) <-> home (env σ' n) = home (env σ' m));
  same_given : forall k i, heap σ (Given k i) = heap σ' (Given k i);
  same_history : history σ = history σ';
  same_generator : now_generator σ = now_generator σ';
  same_mode : now_mode σ = now_mode σ'
}.

(** The inputs of a graph, each with its class. *)
Definition arranged (inputs : list (name * nat)) (σ : state) : Prop :=
  forall n k, In (n, k) inputs -> exists i, home (env σ n) = Given k i.
End Execution.

(** * The machine

    A backtracking machine in the style of a Prolog engine: a configuration is a store with a list of
    actions still to do, and a state is the list of the alternatives that are left, the current one
    first.  [expand] is one step of one alternative; its branches carry the names of the rules. *)

From Coq Require Import List Bool PeanoNat.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores.

Section Machine.
Context {Δ : Domain} {T : Type} {Σ : Structure T}.

(** ** Actions, configurations, states *)

Inductive action : Type :=
| AMatch (R : recursion) (ρ : locs) (p : pattern) (t : T)       (** match [p] against [t] *)
| AGuard (ρ : locs) (g : guard)                                 (** test a guard *)
| ALet (ρ : locs) (x : name) (e : expr)                         (** bind or compare a name *)
| ACheck (l : loc)                                              (** a local name must be bound *)
| AMatchC (R : recursion) (ρ : locs) (p : pattern) (x : name).  (** match what [x] stands for *)

Definition config : Type := store T * list action.
Definition state : Type := list config.

(** [match p₁ t₁ :: … :: match pₙ tₙ] *)
Fixpoint match_children (R : recursion) (ρ : locs) (ps : list pattern) (ts : list T) : list action :=
  match ps, ts with
  | p :: ps, t :: ts => AMatch R ρ p t :: match_children R ρ ps ts
  | _, _ => []
  end.

(** Go on with a store, if there is one. *)
Definition continue (k : list action) (o : option (store T)) : list config :=
  match o with
  | Some σ => [(σ, k)]
  | None => []
  end.

(** ** The transitions *)

(** [match(R, ρ, p, t)] *)
Definition match_pattern (σ : store T) (R : recursion) (ρ : locs) (p : pattern) (t : T)
    (k : list action) : list config :=
  match p with
  | PVar x => (* var *)
      continue k (bind_name σ ρ x (VTerm t))
  | POp f ps => (* op *)
      let (g, ts) := dest t in
      if Nat.eqb f g && Nat.eqb (length ps) (length ts)
      then [(σ, match_children R ρ ps ts ++ k)] else []
  | PFun F ps => (* fun *)
      let (f, ts) := dest t in
      if Nat.eqb (length ps) (length ts)
      then continue (match_children R ρ ps ts ++ k) (bind_name σ ρ F (VOp f)) else []
  | PAlt p q => (* alt *)
      [(σ, AMatch R ρ p t :: k); (σ, AMatch R ρ q t :: k)]
  | PEx x p => (* ex *)
      let l := LFresh (next σ) in
      [(alloc σ, AMatch R (update ρ x l) p t :: ACheck l :: k)]
  | PGuard p g => (* guard *)
      [(σ, AMatch R ρ p t :: AGuard ρ g :: k)]
  | PLet p x e => (* let *)
      [(σ, AMatch R ρ p t :: ALet ρ x e :: k)]
  | PMatch p p' x => (* match *)
      [(σ, AMatch R ρ p t :: AMatchC R ρ p' x :: k)]
  | PMu xs ins outs small b ys => (* mu *)
      [(σ, AMatch (Def xs ins outs small b :: R) (callenv xs ys ρ) b t :: k)]
  | PCall i ys => (* call *)
      match skipn i R with
      | d :: R' => [(σ, AMatch (d :: R') (callenv (d_params d) ys ρ) (d_body d) t :: k)]
      | [] => []
      end
  end.

Definition do_action (σ : store T) (a : action) (k : list action) : list config :=
  match a with
  | AMatch R ρ p t => match_pattern σ R ρ p t k
  | AGuard ρ g => (* test *)
      match geval (get σ ∘ ρ) g with
      | Some true => [(σ, k)]
      | _ => []
      end
  | ALet ρ x e => (* assign *)
      match eval (get σ ∘ ρ) e with
      | Some v => continue k (bind_name σ ρ x v)
      | None => []
      end
  | ACheck l => (* check *)
      match get σ l with
      | Some _ => [(σ, k)]
      | None => []
      end
  | AMatchC R ρ p x => (* constraint *)
      match (get σ ∘ ρ) x with
      | Some (VTerm t) => [(σ, AMatch R ρ p t :: k)]
      | _ => []
      end
  end.

(** What becomes of one alternative: none, one or two alternatives, in order. *)
Definition expand (c : config) : list config :=
  match c with
  | (_, []) => []
  | (σ, a :: k) => do_action σ a k
  end.

(** ** Running *)

Inductive status : Type :=
| Success (σ : store T)
| Failure
| Running.

(** The alternatives left behind a success are kept: enumeration resumes from them. *)
Definition status_of (st : state) : status :=
  match st with
  | [] => Failure
  | (σ, []) :: _ => Success σ
  | _ => Running
  end.

Definition step (st : state) : state :=
  match st with
  | [] => []
  | c :: stk => expand c ++ stk
  end.

(** A running state steps; success and failure do not. *)
Definition steps_to (st st' : state) : Prop := status_of st = Running /\ st' = step st.

Inductive star : state -> state -> Prop :=
| star_refl st : star st st
| star_step st st' st'' : steps_to st st' -> star st' st'' -> star st st''.

Definition init (p : pattern) (t : T) : state := [(empty, [AMatch [] ρ0 p t])].

(** The run that collects all answers: [st ⇓ o]. *)
Inductive answers : state -> list (store T) -> Prop :=
| answers_failure : answers [] []
| answers_success σ stk o : answers stk o -> answers ((σ, []) :: stk) (σ :: o)
| answers_step st o : status_of st = Running -> answers (step st) o -> answers st o.

(** ** T1: the machine is deterministic *)

Theorem step_deterministic st st1 st2 : steps_to st st1 -> steps_to st st2 -> st1 = st2.
Proof. intros [_ ->] [_ ->]. reflexivity. Qed.

Theorem step_progress st : status_of st = Running -> exists st', steps_to st st'.
Proof. intros H. exists (step st). now split. Qed.

Theorem step_terminal st st' : status_of st <> Running -> ~ steps_to st st'.
Proof. intros N [H _]. contradiction. Qed.

(** ** The transitions as a relation

    [c ⟶ c']: the alternative [c'] is one that [c] expands to.  Proofs go by cases on this relation,
    one for each rule. *)

Inductive becomes : config -> config -> Prop :=
| B_var σ R ρ x t k σ' :
    bind_name σ ρ x (VTerm t) = Some σ' ->
    becomes (σ, AMatch R ρ (PVar x) t :: k) (σ', k)
| B_op σ R ρ f ps t k ts :
    dest t = (f, ts) -> length ps = length ts ->
    becomes (σ, AMatch R ρ (POp f ps) t :: k) (σ, match_children R ρ ps ts ++ k)
| B_fun σ R ρ F ps t k f ts σ' :
    dest t = (f, ts) -> length ps = length ts -> bind_name σ ρ F (VOp f) = Some σ' ->
    becomes (σ, AMatch R ρ (PFun F ps) t :: k) (σ', match_children R ρ ps ts ++ k)
| B_alt_l σ R ρ p q t k :
    becomes (σ, AMatch R ρ (PAlt p q) t :: k) (σ, AMatch R ρ p t :: k)
| B_alt_r σ R ρ p q t k :
    becomes (σ, AMatch R ρ (PAlt p q) t :: k) (σ, AMatch R ρ q t :: k)
| B_ex σ R ρ x p t k l :
    l = LFresh (next σ) ->
    becomes (σ, AMatch R ρ (PEx x p) t :: k) (alloc σ, AMatch R (update ρ x l) p t :: ACheck l :: k)
| B_guard σ R ρ p g t k :
    becomes (σ, AMatch R ρ (PGuard p g) t :: k) (σ, AMatch R ρ p t :: AGuard ρ g :: k)
| B_let σ R ρ p x e t k :
    becomes (σ, AMatch R ρ (PLet p x e) t :: k) (σ, AMatch R ρ p t :: ALet ρ x e :: k)
| B_match σ R ρ p p' x t k :
    becomes (σ, AMatch R ρ (PMatch p p' x) t :: k) (σ, AMatch R ρ p t :: AMatchC R ρ p' x :: k)
| B_mu σ R ρ xs ins outs small b ys t k :
    becomes (σ, AMatch R ρ (PMu xs ins outs small b ys) t :: k)
            (σ, AMatch (Def xs ins outs small b :: R) (callenv xs ys ρ) b t :: k)
| B_call σ R ρ i ys t k d R' :
    skipn i R = d :: R' ->
    becomes (σ, AMatch R ρ (PCall i ys) t :: k)
            (σ, AMatch (d :: R') (callenv (d_params d) ys ρ) (d_body d) t :: k)
| B_test σ ρ g k :
    geval (get σ ∘ ρ) g = Some true ->
    becomes (σ, AGuard ρ g :: k) (σ, k)
| B_assign σ ρ x e k v σ' :
    eval (get σ ∘ ρ) e = Some v -> bind_name σ ρ x v = Some σ' ->
    becomes (σ, ALet ρ x e :: k) (σ', k)
| B_check σ l k v :
    get σ l = Some v ->
    becomes (σ, ACheck l :: k) (σ, k)
| B_constraint σ R ρ p x k t :
    (get σ ∘ ρ) x = Some (VTerm t) ->
    becomes (σ, AMatchC R ρ p x :: k) (σ, AMatch R ρ p t :: k).

Lemma in_continue k o c : In c (continue k o) -> exists σ, o = Some σ /\ c = (σ, k).
Proof. destruct o as [σ |]; simpl; [intros [<- | []]; eauto | intros []]. Qed.

Lemma match_pattern_becomes σ R ρ p t k c :
  In c (match_pattern σ R ρ p t k) -> becomes (σ, AMatch R ρ p t :: k) c.
Proof.
  destruct p; simpl.
  - intros I. apply in_continue in I as (σ' & E & ->). now constructor.
  - destruct (dest t) as [g ts] eqn:E. destruct (_ && _) eqn:Q; [| intros []].
    apply andb_prop in Q as [Q1 Q2]. apply Nat.eqb_eq in Q1, Q2. subst.
    intros [<- | []]. now constructor.
  - destruct (dest t) as [g ts] eqn:E. destruct (Nat.eqb _ _) eqn:Q; [| intros []].
    apply Nat.eqb_eq in Q. intros I. apply in_continue in I as (σ' & B & ->). econstructor; eauto.
  - intros [<- | [<- | []]]; constructor.
  - intros [<- | []]. now constructor.
  - intros [<- | []]. constructor.
  - intros [<- | []]. constructor.
  - intros [<- | []]. constructor.
  - intros [<- | []]. constructor.
  - destruct (skipn i R) as [| d R'] eqn:E; [intros [] |]. intros [<- | []]. now constructor.
Qed.

Lemma expand_becomes c c' : In c' (expand c) -> becomes c c'.
Proof.
  destruct c as [σ [| a k]]; [intros [] |]. destruct a; simpl.
  - apply match_pattern_becomes.
  - destruct (geval (get σ ∘ ρ) g) as [[] |] eqn:E; try (intros []; fail).
    intros [<- | []]. now constructor.
  - destruct (eval (get σ ∘ ρ) e) as [v |] eqn:E; [| intros []].
    intros I. apply in_continue in I as (σ' & B & ->). econstructor; eauto.
  - destruct (get σ l) eqn:E; [| intros []]. intros [<- | []]. econstructor; eauto.
  - destruct ((get σ ∘ ρ) x) as [[t | | |] |] eqn:E; try (intros []; fail).
    intros [<- | []]. now constructor.
Qed.

Lemma becomes_expand c c' : becomes c c' -> In c' (expand c).
Proof.
  destruct 1; simpl;
    repeat match goal with
    | H : bind_name _ _ _ _ = _ |- _ => rewrite H; clear H
    | H : dest _ = _ |- _ => rewrite H; clear H
    | H : length _ = length _ |- _ => rewrite H; clear H
    | H : eval _ _ = _ |- _ => rewrite H; clear H
    | H : geval _ _ = _ |- _ => rewrite H; clear H
    | H : get _ _ = _ |- _ => rewrite H; clear H
    | H : (_ ∘ _) _ = _ |- _ => rewrite H; clear H
    | H : skipn _ _ = _ |- _ => rewrite H; clear H
    | H : _ = LFresh _ |- _ => rewrite H; clear H
    end; rewrite ?Nat.eqb_refl; simpl; auto.
Qed.

Theorem expand_spec c c' : In c' (expand c) <-> becomes c c'.
Proof. split; [apply expand_becomes | apply becomes_expand]. Qed.
End Machine.

Arguments action {Δ} T.
Arguments config {Δ} T.
Arguments state {Δ} T.
Arguments status {Δ} T.

Notation "c ⟶ c'" := (becomes c c') (at level 70).
Notation "st ⟶* st'" := (star st st') (at level 70).
Notation "st ⇓ o" := (answers st o) (at level 70).

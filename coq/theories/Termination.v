(** * Termination (T4)

    The machine terminates on guarded patterns.  The proof is by induction on the pattern, in
    continuation-passing style: a match action terminates if the actions after it do, from every store
    that the match may leave.  At a [μ] there is an inner induction on the size of the subject: the
    analysis has checked that each call is made on a smaller one. *)

From Coq Require Import List Bool PeanoNat Lia.
Import ListNotations.
From PyPM Require Import Names Values Terms Guards Patterns Declarative Stores Machine Guarded
  Enumeration.

Section Termination.
Context {Δ : Domain} {T : Type} {Σ : Structure T} {Z : Sized T}.

(** ** Terminating configurations: the accessible ones *)

Inductive terminating (c : config T) : Prop :=
| terminating_intro : (forall c', In c' (expand c) -> terminating c') -> terminating c.

Lemma terminating_step c : (forall c', c ⟶ c' -> terminating c') -> terminating c.
Proof. intros H. constructor. intros c' I. now apply H, expand_spec. Qed.

Lemma terminating_success σ : terminating (σ, []).
Proof. constructor. intros c' []. Qed.

(** ** What the modes mean *)

(** [fits m k n]: the mode [m] is true of a term of size [k], relative to [n]. *)
Definition fits (m : mode) (k n : nat) : Prop :=
  match m with
  | Strict => k < n
  | Weak => k <= n
  | Unk => True
  end.

(** The modes [M] are true of [k], relative to the sizes [ns]. *)
Definition all_fit (M : list mode) (k : nat) (ns : list nat) : Prop :=
  Forall2 (fun m n => fits m k n) M ns.

(** The name is bound to a term of mode [m]. *)
Definition named (m : mode) (σ : store T) (ρ : locs) (n : nat) (x : name) : Prop :=
  exists t, (get σ ∘ ρ) x = Some (VTerm t) /\ fits m (size t) n.

(** What [sizes] says is true. *)
Definition sizes_ok (σ : store T) (ρ : locs) (n : nat) (G : sizes) : Prop :=
  (forall x, In x (fst G) -> named Strict σ ρ n x) /\
  (forall x, In x (snd G) -> named Weak σ ρ n x).

Lemma fits_weaken m k n : fits m k n -> forall k', k' <= k -> fits m k' n.
Proof. destruct m; simpl; lia. Qed.

Lemma fits_under m k n k' : fits m k n -> k' < k -> fits (under m) k' n.
Proof. destruct m; simpl; lia. Qed.

Lemma all_fit_le M k k' ns : k' <= k -> all_fit M k ns -> all_fit M k' ns.
Proof. intros L. induction 1; constructor; eauto using fits_weaken. Qed.

Lemma all_fit_under M k k' ns : k' < k -> all_fit M k ns -> all_fit (map under M) k' ns.
Proof. intros L. induction 1; constructor; eauto using fits_under. Qed.

Lemma all_fit_unknown M k k' ns : all_fit M k ns -> all_fit (map (fun _ => Unk) M) k' ns.
Proof. induction 1; constructor; simpl; auto. Qed.

(** [E] are the modes of a subject of size [n]; a term of mode [v] relative to [n] has the modes
    [shift v E]. *)
Lemma all_fit_shift v E k n ns : fits v k n -> all_fit E n ns -> all_fit (shift v E) k ns.
Proof. destruct v; simpl; eauto using all_fit_under, all_fit_le, all_fit_unknown. Qed.

Lemma all_fit_nth M k ns i :
  all_fit M k ns -> nth_error M i = Some Strict -> exists n, nth_error ns i = Some n /\ k < n.
Proof.
  intros H. revert i. induction H; intros [| i] E; simpl in *; try discriminate; eauto.
  injection E as ->. eauto.
Qed.

(** *** The analysis of sizes is sound, form by form *)

Lemma named_extends m (σ σ' : store T) ρ n x :
  get σ ⊆ get σ' -> named m σ ρ n x -> named m σ' ρ n x.
Proof. intros L (t & E & F). exists t. split; auto. now apply (compose_extends _ _ ρ L). Qed.

Lemma sizes_ok_extends (σ σ' : store T) ρ n G :
  get σ ⊆ get σ' -> sizes_ok σ ρ n G -> sizes_ok σ' ρ n G.
Proof. intros L [HS HW]. split; intros x I; eauto using named_extends. Qed.

Lemma named_weak σ ρ n x : named Strict σ ρ n x -> named Weak σ ρ n x.
Proof. intros (t & E & F). exists t. simpl in *. split; auto; lia. Qed.

Lemma sizes_ok_both σ ρ n G x : sizes_ok σ ρ n G -> In x (fst G ++ snd G) -> named Weak σ ρ n x.
Proof. intros [HS HW] I. apply in_app_or in I as [I | I]; auto using named_weak. Qed.

Lemma sizes_ok_none σ ρ n : sizes_ok σ ρ n no_sizes.
Proof. split; intros x []. Qed.

Lemma sizes_ok_record σ ρ n m l G :
  sizes_ok σ ρ n G -> (m <> Unk -> forall x, In x l -> named m σ ρ n x) ->
  sizes_ok σ ρ n (record_sizes m l G).
Proof.
  intros [HS HW] H. destruct m; simpl; split; simpl; auto;
    intros x I; apply in_app_or in I as [I | I]; auto; apply H; auto; discriminate.
Qed.

Lemma sizes_ok_meet_l σ ρ n G H : sizes_ok σ ρ n G -> sizes_ok σ ρ n (meet G H).
Proof.
  intros K. split; simpl; intros x I; apply inter_spec in I as [I _].
  - now apply K.
  - eapply sizes_ok_both; eauto.
Qed.

Lemma sizes_ok_meet_r σ ρ n G H : sizes_ok σ ρ n H -> sizes_ok σ ρ n (meet G H).
Proof.
  intros K. split; simpl; intros x I; apply inter_spec in I as [_ I].
  - now apply K.
  - eapply sizes_ok_both; eauto.
Qed.

Lemma sizes_ok_forget σ ρ n x G : sizes_ok σ ρ n G -> sizes_ok σ ρ n (forget x G).
Proof. intros [HS HW]. split; simpl; intros y I; apply without_spec in I as [I _]; auto. Qed.

(** Without [x], the local environment and the outer one agree. *)
Lemma sizes_ok_update σ ρ n x l G :
  sizes_ok σ (update ρ x l) n (forget x G) <-> sizes_ok σ ρ n (forget x G).
Proof.
  assert (E : forall y, y <> x -> (get σ ∘ update ρ x l) y = (get σ ∘ ρ) y).
  { intros y N. unfold compose. now rewrite update_other. }
  split; intros [HS HW]; split; intros y I; simpl in I;
    [specialize (HS y I) | specialize (HW y I) | specialize (HS y I) | specialize (HW y I)];
    apply without_spec in I as [_ N]; unfold named in *;
    [rewrite E in HS | rewrite E in HW | rewrite E | rewrite E]; auto.
Qed.

Lemma name_mode_sound σ ρ n G x t :
  sizes_ok σ ρ n G -> (get σ ∘ ρ) x = Some (VTerm t) -> fits (name_mode G x) (size t) n.
Proof.
  intros [HS HW] E. unfold name_mode.
  destruct (mem x (fst G)) eqn:M1; [| destruct (mem x (snd G)) eqn:M2; [| exact I]].
  - apply mem_spec, HS in M1 as (u & Eu & F). congruence.
  - apply mem_spec, HW in M2 as (u & Eu & F). congruence.
Qed.

Lemma named_name_mode σ ρ n G x :
  sizes_ok σ ρ n G -> name_mode G x <> Unk -> named (name_mode G x) σ ρ n x.
Proof.
  intros [HS HW]. unfold name_mode.
  destruct (mem x (fst G)) eqn:M1; [now apply mem_spec, HS in M1 |].
  destruct (mem x (snd G)) eqn:M2; [now apply mem_spec, HW in M2 | congruence].
Qed.

(** A name that stands for the same value has the same mode. *)
Lemma sizes_ok_let σ ρ n G x y v :
  sizes_ok σ ρ n G -> (get σ ∘ ρ) x = Some v -> (get σ ∘ ρ) y = Some v ->
  sizes_ok σ ρ n (record_sizes (name_mode G y) [x] G).
Proof.
  intros K Ex Ey. apply sizes_ok_record; auto. intros N z [<- | []].
  destruct (named_name_mode _ _ _ _ _ K N) as (t & Et & F). exists t. split; auto. congruence.
Qed.

(** ** Terminating patterns *)

(** The names [xs] are bound to terms of size at most [k]. *)
Definition all_small (σ : store T) (ρ : locs) (k : nat) (xs : list name) : Prop :=
  forall x, In x xs -> named Weak σ ρ k x.

(** The body of [d] terminates on terms smaller than [n], and leaves its parameters [d_small]
    bound to terms no larger than its subject. *)
Definition body_terminates (d : definition) (R : recursion) (n : nat) : Prop :=
  forall t ρ σ k, size t < n ->
    (forall σ', get σ ⊆ get σ' -> all_small σ' ρ (size t) (d_small d) -> terminating (σ', k)) ->
    terminating (σ, AMatch (d :: R) ρ (d_body d) t :: k).

(** So do the bodies of all enclosing definitions, on terms smaller than their subjects. *)
Definition calls_terminate (R : recursion) (ns : list nat) : Prop :=
  forall i d R' n, skipn i R = d :: R' -> nth_error ns i = Some n -> body_terminates d R' n.

(** The modes are true of a term of size [k], the subjects of the activations having the sizes
    [n :: ns], innermost first. *)
Record activation (m : mode) (M E : list mode) (k n : nat) (ns : list nat) : Prop := {
  act_mode : fits m k n;
  act_outer : all_fit M k ns;
  act_entry : all_fit E n ns
}.

Definition pattern_terminates (p : pattern) : Prop :=
  forall R ρ t σ k n ns G m M E,
    descends R m M E G p = true ->
    activation m M E (size t) n ns ->
    calls_terminate R (n :: ns) ->
    sizes_ok σ ρ n G ->
    (forall σ', get σ ⊆ get σ' -> sizes_ok σ' ρ n (sizes_after R m G p) -> terminating (σ', k)) ->
    terminating (σ, AMatch R ρ p t :: k).

Lemma activation_child m M E t n ns f ts u :
  dest t = (f, ts) -> In u ts -> activation m M E (size t) n ns ->
  activation (under m) (map under M) E (size u) n ns.
Proof.
  intros D I A. pose proof (size_child _ _ _ _ D I) as L. destruct A.
  split; eauto using fits_under, all_fit_under.
Qed.

Lemma activation_constraint v m M E k k' n ns :
  fits v k' n -> activation m M E k n ns -> activation v (shift v E) E k' n ns.
Proof. intros F A. destruct A. split; auto. now apply all_fit_shift with n. Qed.

(** [x] *)
Lemma var_terminates x : pattern_terminates (PVar x).
Proof.
  intros R ρ t σ k n ns G m M E _ A _ K Hk. apply terminating_step. intros c' X.
  inversion X; subst; clear X.
  match goal with B : bind_name _ _ _ _ = _ |- _ => apply bind_name_sound in B as (B & L & _) end.
  apply Hk; auto. apply sizes_ok_record; eauto using sizes_ok_extends.
  intros _ y [<- | []]. exists t. split; auto. apply A.
Qed.

(** The children of an operator pattern, one after the other. *)
Lemma children_terminate R ρ n ns m M E ps :
  Forall pattern_terminates ps -> calls_terminate R (n :: ns) ->
  forall ts σ k G, length ps = length ts ->
    thread_check (sizes_after R m) (descends R m M E) G ps = true ->
    (forall t, In t ts -> activation m M E (size t) n ns) ->
    sizes_ok σ ρ n G ->
    (forall σ', get σ ⊆ get σ' -> sizes_ok σ' ρ n (thread (sizes_after R m) G ps) ->
       terminating (σ', k)) ->
    terminating (σ, match_children R ρ ps ts ++ k).
Proof.
  intros HF HC. induction HF as [| p ps Hp _ IH]; intros [| t ts] σ k G Len HG HA K Hk;
    simpl in *; try discriminate.
  - apply Hk; auto using extends_refl.
  - apply andb_prop in HG as [G1 G2].
    apply (Hp R ρ t σ _ n ns G m M E); auto. intros σ' L K'.
    apply IH with (sizes_after R m G p); auto. intros σ'' L' K''. apply Hk; auto.
    exact (extends_trans _ _ _ L L').
Qed.

(** [f(p̄)] *)
Lemma op_terminates f ps : Forall pattern_terminates ps -> pattern_terminates (POp f ps).
Proof.
  intros IH R ρ t σ k n ns G m M E HG A HC K Hk. apply terminating_step. intros c' X.
  inversion X; subst; clear X.
  eapply children_terminate; eauto. intros u I. eapply activation_child; eauto.
Qed.

(** [F(p̄)] *)
Lemma fun_terminates F ps : Forall pattern_terminates ps -> pattern_terminates (PFun F ps).
Proof.
  intros IH R ρ t σ k n ns G m M E HG A HC K Hk. apply terminating_step. intros c' X.
  inversion X; subst; clear X.
  match goal with B : bind_name _ _ _ _ = _ |- _ => apply bind_name_sound in B as (_ & L & _) end.
  eapply children_terminate; eauto using sizes_ok_extends.
  - intros u I. eapply activation_child; eauto.
  - intros σ'' L' K'. apply Hk; auto. exact (extends_trans _ _ _ L L').
Qed.

(** [p ∥ q] *)
Lemma alt_terminates p q :
  pattern_terminates p -> pattern_terminates q -> pattern_terminates (PAlt p q).
Proof.
  intros Hp Hq R ρ t σ k n ns G m M E HG A HC K Hk. simpl in HG, Hk.
  apply andb_prop in HG as [G1 G2].
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  - eapply Hp; eauto. intros σ' L K'. apply Hk; auto using sizes_ok_meet_l.
  - eapply Hq; eauto. intros σ' L K'. apply Hk; auto using sizes_ok_meet_r.
Qed.

(** [∃x. p] *)
Lemma ex_terminates x p : pattern_terminates p -> pattern_terminates (PEx x p).
Proof.
  intros Hp R ρ t σ k n ns G m M E HG A HC K Hk. simpl in HG, Hk.
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  eapply Hp; eauto.
  - apply sizes_ok_update. now apply sizes_ok_forget.
  - intros σ' L K'. apply terminating_step. intros c' X. inversion X; subst; clear X.
    apply Hk; auto. apply (sizes_ok_forget _ _ _ x) in K'. eapply sizes_ok_update. exact K'.
Qed.

(** [p; guard(g)] *)
Lemma guard_terminates p g : pattern_terminates p -> pattern_terminates (PGuard p g).
Proof.
  intros Hp R ρ t σ k n ns G m M E HG A HC K Hk.
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  eapply Hp; eauto. intros σ' L K'. apply terminating_step. intros c' X.
  inversion X; subst; clear X. auto.
Qed.

(** [p; let(x = e)] *)
Lemma let_terminates p x e : pattern_terminates p -> pattern_terminates (PLet p x e).
Proof.
  intros Hp R ρ t σ k n ns G m M E HG A HC K Hk. simpl in HG, Hk.
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  eapply Hp; eauto. intros σ' L K'. apply terminating_step. intros c' X.
  inversion X as [| | | | | | | | | | | | ? ? ? ? ? v σ'' Ev B | |]; subst; clear X.
  apply bind_name_sound in B as (B & L' & _).
  apply Hk; [exact (extends_trans _ _ _ L L') |].
  apply (sizes_ok_extends σ' σ'') in K'; auto.
  destruct e as [c | y | y α | π es | es]; auto. simpl in Ev.
  eapply sizes_ok_let; eauto. now apply (compose_extends _ _ ρ L').
Qed.

(** [p; (p' ≈ x)] *)
Lemma match_terminates p p' x :
  pattern_terminates p -> pattern_terminates p' -> pattern_terminates (PMatch p p' x).
Proof.
  intros Hp Hp' R ρ t σ k n ns G m M E HG A HC K Hk. simpl in HG, Hk.
  apply andb_prop in HG as [G1 G2].
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  eapply Hp; eauto. intros σ' L K'. apply terminating_step. intros c' X.
  inversion X; subst; clear X.
  eapply Hp'; eauto.
  - eapply activation_constraint; eauto. eapply name_mode_sound; eauto.
  - intros σ'' L' K''. apply Hk; auto. exact (extends_trans _ _ _ L L').
Qed.

(** What a finished body says about its parameters holds for the arguments outside. *)
Lemma sizes_ok_arguments σ ρ n m G xs small ys k :
  sizes_ok σ ρ n G -> fits m k n -> all_small σ (callenv xs ys ρ) k small ->
  sizes_ok σ ρ n (record_sizes m (arguments xs small ys) G).
Proof.
  intros K F H. apply sizes_ok_record; auto. intros _ y I.
  apply arguments_spec in I as (x & I & E). destruct (H x I) as (t & Et & Ft).
  exists t. split; [| eapply fits_weaken; eauto].
  rewrite <- Et. unfold compose, callenv. now rewrite E.
Qed.

(** The body of a [μ], by induction on the size of the subject: its own calls are made on smaller
    terms, and the outer modes stay true of those. *)
Lemma body_terminates_below R d n ns m M :
  pattern_terminates (d_body d) ->
  descends (d :: R) Weak (m :: M) (m :: M) no_sizes (d_body d) = true ->
  small_ok (d :: R) (d_small d) (d_body d) = true ->
  calls_terminate R (n :: ns) ->
  forall N, (forall k, k < N -> fits m k n /\ all_fit M k ns) -> body_terminates d R N.
Proof.
  intros Hb HG Hs HC N. induction N as [| N IH]; intros HM t ρ σ k L Hk; [lia |].
  assert (HN : body_terminates d R (size t)).
  { assert (body_terminates d R N) as HN by (apply IH; intros; apply HM; lia).
    intros u ρ' σ' k' L' Hk'. apply HN; auto. lia. }
  destruct (HM _ L) as [Hm HM'].
  apply (Hb (d :: R) ρ t σ k (size t) (n :: ns) no_sizes Weak (m :: M) (m :: M)); auto.
  - split; [simpl; lia | |]; now constructor.
  - intros [| i] d' R' n' E1 E2; simpl in E1, E2; [| eapply HC; eauto].
    injection E1 as <- <-. injection E2 as <-. exact HN.
  - apply sizes_ok_none.
  - intros σ' L' K. apply Hk; auto. intros x I. unfold small_ok in Hs.
    apply subset_spec in Hs. eapply sizes_ok_both; [exact K | now apply Hs].
Qed.

(** [(μ(x̄; I; O; B). b)(ȳ)] *)
Lemma mu_terminates xs ins outs small b ys :
  pattern_terminates b -> pattern_terminates (PMu xs ins outs small b ys).
Proof.
  intros Hb R ρ t σ k n ns G m M E HG A HC K Hk. cbn [descends] in HG.
  apply andb_prop in HG as [HG Hs].
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  apply (body_terminates_below R (Def xs ins outs small b) n ns m M Hb HG Hs HC (1 + size t));
    [| lia |].
  - intros k' L. destruct A.
    split; [apply fits_weaken with (size t) | apply all_fit_le with (size t)]; auto; lia.
  - intros σ' L H. apply Hk; auto.
    eapply sizes_ok_arguments; eauto using sizes_ok_extends. apply A.
Qed.

(** [call_i(ȳ)] *)
Lemma call_terminates i ys : pattern_terminates (PCall i ys).
Proof.
  intros R ρ t σ k n ns G m M E HG A HC K Hk. cbn [descends] in HG.
  apply terminating_step. intros c' X. inversion X; subst; clear X.
  destruct (nth_error (m :: M) i) as [[] |] eqn:EM; try discriminate.
  assert (all_fit (m :: M) (size t) (n :: ns)) as F by (destruct A; now constructor).
  destruct (all_fit_nth _ _ _ _ F EM) as (n' & En & L).
  eapply HC; eauto. intros σ' L' H. apply Hk; auto. simpl.
  erewrite skipn_nth_error by eassumption.
  eapply sizes_ok_arguments; eauto using sizes_ok_extends. apply A.
Qed.

Lemma all_terminate p : pattern_terminates p.
Proof.
  induction p using pattern_ind'; auto using var_terminates, op_terminates, fun_terminates,
    alt_terminates, ex_terminates, guard_terminates, let_terminates, match_terminates,
    mu_terminates, call_terminates.
Qed.

(** ** T4 *)

Theorem guarded_terminating p t :
  guarded p = true -> terminating (empty, [AMatch [] ρ0 p t]).
Proof.
  intros HG. apply (all_terminate p [] ρ0 t empty [] (size t) [] no_sizes Weak [] []); auto.
  - split; [simpl; lia | |]; constructor.
  - intros i d R' n E. destruct i; discriminate.
  - apply sizes_ok_none.
  - intros σ' _ _. apply terminating_success.
Qed.

(** A stack of terminating alternatives has a list of answers. *)
Lemma terminating_answers c :
  terminating c -> forall stk, (exists o, stk ⇓ o) -> exists o, c :: stk ⇓ o.
Proof.
  induction 1 as [c _ IH]. intros stk Hs. destruct c as [σ [| a k]].
  { destruct Hs as [o Hs]. exists (σ :: o). now constructor. }
  assert (X : exists o, expand (σ, a :: k) ++ stk ⇓ o).
  { induction (expand (σ, a :: k)) as [| c cs IHcs]; [exact Hs |].
    apply IH; [now left |]. apply IHcs. intros c' I. apply IH. now right. }
  destruct X as [o X]. exists o. now apply answers_step.
Qed.

Theorem termination p t : guarded p = true -> exists o, init p t ⇓ o.
Proof.
  intros G. apply terminating_answers; [now apply guarded_terminating |].
  exists []. constructor.
Qed.

Corollary machine_halts p t :
  guarded p = true -> exists st, init p t ⟶* st /\ status_of st <> Running.
Proof.
  intros G. destruct (termination p t G) as [o H]. apply answers_first in H.
  destruct o as [| σ o]; [exists [] | destruct H as [stk H]; exists ((σ, []) :: stk)];
    split; auto; discriminate.
Qed.
End Termination.
